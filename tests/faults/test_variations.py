"""The same model, samples and options give the same bytes, whatever else differs."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import QUICK, digests, residual, samples

NAMED = ("manifest.json",)  # it names the model
OPTIONS = ("--budget", "25%", "--quiet")


@dataclass(frozen=True)
class Variation:
    """What differs from a compile in a folder of its own with an empty cache."""

    environment: Mapping[str, str] = field(default_factory=dict)
    place: str = "place"
    model: str = "model.onnx"
    absolute: bool = False
    umask: int = 0o022
    one_processor: bool = False
    cache: str = "empty"
    interpreter: tuple[str, ...] = ()


VARIATIONS = {
    "one processor": Variation(one_processor=True),
    "hash seed": Variation({"PYTHONHASHSEED": "4711"}),
    "no hash seed": Variation({"PYTHONHASHSEED": "0"}),
    "folder": Variation(place="a b/c'd/ütf-8 \u65e5\u672c"),
    "absolute path": Variation(absolute=True),
    "renamed input": Variation(model="other name.onnx"),
    "locale": Variation({"LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"}),
    "plain locale": Variation({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    "time zone": Variation({"TZ": "Pacific/Kiritimati"}),
    "umask": Variation(umask=0o077),
    "threads of the libraries": Variation({"OPENBLAS_NUM_THREADS": "7", "OMP_NUM_THREADS": "3"}),
    "one thread of the libraries": Variation({"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}),
    "warm cache": Variation(cache="warm"),
    "killed before": Variation(cache="killed"),
    "other temporary and home folders": Variation({"TMPDIR": "tmp", "HOME": "home"}),
    "optimized interpreter": Variation(interpreter=("-OO",)),
}


def compile_in(
    folder: Path, variation: Variation, output: str = "out", options: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    place = folder / variation.place
    place.mkdir(parents=True, exist_ok=True)
    onnx.save(residual(), place / variation.model)
    np.savez(place / "samples.npz", x=samples(3, 8, 8))
    own = {
        name: str(place / value) if name in ("TMPDIR", "HOME") else value
        for name, value in variation.environment.items()
    }
    for name in {"TMPDIR", "HOME"} & set(own):
        Path(own[name]).mkdir(exist_ok=True)
    start = place if variation.absolute else Path()
    command = [sys.executable, *variation.interpreter, "-c", QUICK, "compile", str(start / variation.model)]
    command += ["--calibration", str(start / "samples.npz"), "-o", output, "--cache", "cache", *OPTIONS, *options]

    def prepare() -> None:
        os.umask(variation.umask)
        if variation.one_processor:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    return subprocess.Popen(command, cwd=place, env={**os.environ, **own}, stderr=subprocess.PIPE, preexec_fn=prepare)


def files(folder: Path, variation: Variation) -> dict[str, str]:
    """Digests by name; where the model has another name, without those that hold it."""
    left_out = NAMED if variation.model != Variation.model else ()
    return digests(folder / variation.place / "out", *left_out)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """The folder of a compile of which nothing differs, and the seconds that it takes."""
    folder, began = tmp_path_factory.mktemp("usual"), time.monotonic()
    process = compile_in(folder, Variation())
    assert process.communicate() == (None, b"")
    return folder, time.monotonic() - began


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIATIONS)
def test_the_same_bytes(name: str, usual: tuple[Path, float], tmp_path: Path) -> None:
    variation, (folder, seconds) = VARIATIONS[name], usual
    if variation.cache == "killed":
        process = compile_in(tmp_path, variation)
        time.sleep(0.7 * seconds)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        shutil.rmtree(tmp_path / variation.place / "out", ignore_errors=True)
    elif variation.cache == "warm":
        process = compile_in(tmp_path, variation, "before")
        assert process.communicate() == (None, b"")
    process = compile_in(tmp_path, variation)
    assert process.communicate() == (None, b"")
    result, wanted = files(tmp_path, variation), files(folder, Variation())
    assert len(result) >= len(wanted) - len(NAMED)
    assert result == {name: wanted[name] for name in result}


@pytest.mark.slow
def test_what_matters_changes_the_bytes(usual: tuple[Path, float], tmp_path: Path) -> None:
    """The comparison sees a difference: another seed."""
    process = compile_in(tmp_path, Variation(), options=("--seed", "1"))
    assert process.communicate() == (None, b"")
    assert files(tmp_path, Variation())["manifest.json"] != files(usual[0], Variation())["manifest.json"]
