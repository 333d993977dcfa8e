"""Compiles mutants through the command line's main: `python mutated.py FOLDER NUMBER…`, a line of JSON for each.

The number -1 ends this process as a crash in a library would, -2 writes where nothing belongs, -3 is a fault of the
compiler: what a harness must find.
"""

import contextlib
import ctypes
import io
import json
import os
import resource
import shutil
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from compiling import alone, quick
from mutations import DECODER, SEEDS, mutant
from random_decoders import drawn

from ptqc import api
from ptqc.cli import main as cli
from ptqc.execution import speed
from ptqc.kv_cache.known import NAMES
from ptqc.utils.memory import peak_memory_mb
from ptqc.utils.store import write_npz

CRASH, LITTER, FAULT = -1, -2, -3
ADDRESS_SPACE = 8 * 2**30


def samples(seed: str, number: int) -> dict[str, np.ndarray]:
    """Four samples that fit the seed; a mutant may take others."""
    if seed == DECODER:
        steps = [drawn(number % 3).step(8, each) for each in range(4)]
        return {name: np.concatenate([step[name] for step in steps]) for name in steps[0]}
    shape, rng = SEEDS[seed][1], np.random.default_rng(1)
    if seed == "words":
        return {"i": rng.integers(0, 64, (4, *shape))}
    return {"x": rng.standard_normal((4, *shape)).astype(np.float16 if seed == "half" else np.float32)}


def outcome(folder: Path, number: int) -> dict[str, Any]:
    """What a compile of a mutant ends with, says, takes, and leaves."""
    seed, data = mutant(abs(number))
    (folder / "m.onnx").write_bytes(data)
    write_npz(folder / "c.npz", samples(seed, number))
    source = "synthetic" if number % 3 == 0 and seed != DECODER else "c.npz"
    arguments = ["compile", "m.onnx", "--calibration", source, "--samples", "4", "--bits", "4", "-o", "out"]
    arguments += ["--kv-cache", NAMES[number % len(NAMES)]] if seed == DECODER else []
    text, started = io.StringIO(), processor_seconds()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak of memory begins anew
    with contextlib.redirect_stderr(text), planted(number, folder):
        code = cli.main([*arguments, "--cache", str(folder / "cache"), "--quiet"])
    unchanged = (folder / "m.onnx").read_bytes() == data
    shutil.rmtree(folder / "out", ignore_errors=True)
    left = sorted({path.name for path in folder.iterdir()} - {"m.onnx", "c.npz", "cache"})
    for name in left:
        (folder / name).unlink()
    return {
        "number": number,
        "seed": seed,
        "code": code,
        "told": text.getvalue(),
        "seconds": processor_seconds() - started,
        "megabytes": peak_memory_mb(),
        "child_megabytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
        "left": left,
        "unchanged": unchanged,
    }


def processor_seconds() -> float:
    """Of this process and those that it waited for: on a busy machine the clock tells little."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


@contextlib.contextmanager
def planted(number: int, folder: Path) -> Any:
    """What must not happen, for the harness to find."""
    right = api.check_output

    def wrong(*_given: object) -> None:
        if number == CRASH:
            ctypes.string_at(0)
        elif number == LITTER:
            (folder / "litter").write_text("")
        raise ZeroDivisionError("planted")

    with mock.patch.object(api, "check_output", wrong if number < 0 else right):
        yield


def main() -> None:
    """Work through the numbers."""
    folder = Path(sys.argv[1]).resolve()
    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    speed.SECONDS = 0.02
    alone()
    with quick():
        for number in map(int, sys.argv[2:]):
            print(json.dumps(outcome(folder, number)), flush=True)


if __name__ == "__main__":
    main()
