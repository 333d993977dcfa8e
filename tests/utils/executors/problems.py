"""Small problems for executors, and what became of processes."""

import hashlib
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ptqc.formats import Format, Integer, Scaled
from ptqc.ir.layers import Layer
from ptqc.passes.quantize.solve_weights import FormatSolutions, WeightProblem

FORMS: list[Scaled] = [Integer(3), Integer(4)]
MARK = "PTQC_TEST_MARK"


def problem(seed: int = 0, rows: int = 6, width: int = 16) -> WeightProblem:
    """A product's weight (width, rows) with the second moments of random inputs."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((width, rows)).astype(np.float32)
    inputs = generator.standard_normal((1, width, 4 * width)).astype(np.float32)
    second = inputs @ inputs.swapaxes(1, 2) / np.float32(4 * width)
    layer = Layer("y", "Gemm", "x", "w", None, "y", values.shape, 1)
    return WeightProblem(values, FORMS, 1, layer=layer, second=second, held=second, alone=True, together=2)


def told(result: FormatSolutions) -> list[tuple[Format, str, float]]:
    """A result in few words, the same for the same bytes."""
    return [
        (solution.form, hashlib.sha256(solution.codes.tobytes() + solution.scale.tobytes()).hexdigest(), error)
        for solution, error in result
    ]


def marked(mark: str) -> list[int]:
    """Processes whose environment has this mark: what a process started, and what that did."""
    result = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (place / "environ").read_bytes().split(b"\0"):
                result.append(int(place.name))
        except OSError:  # gone, or not ours
            continue
    return result


def command_of(process: int) -> list[str]:
    """The words of a process's command; none where it is gone."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return []


def gone(processes: Iterable[int], seconds: float = 20) -> bool:
    """Whether processes end within a time; one that ended and that nobody asked for counts as gone."""
    end = time.monotonic() + seconds
    while any(map(_is_running, processes)):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def _is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def environment(mark: str) -> dict[str, str]:
    """That of a process which is to be found, with all that it starts, by `marked`."""
    return {**os.environ, MARK: mark, "PYTHONPATH": os.pathsep.join(sys.path)}
