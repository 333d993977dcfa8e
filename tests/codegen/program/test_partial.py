"""A share of a kernel's output is compared, and how much that is."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from ptqc.codegen.program.layout import Frame, Layout
from ptqc.codegen.program.listing import Call, Listing
from ptqc.codegen.program.partial import Cropping, PartialRun
from ptqc.codegen.program.verify import Loaded

LAYOUTS = {
    "x": Layout((4, 6, 5), "uint8", is_io=True),
    "y": Layout((4, 6, 5), "uint8"),
    "z": Layout((4, 6, 5), "uint8", parent_buffer=Frame((8, 9, 9), (4, 1, 2))),
}
X = np.random.default_rng(0).integers(0, 256, (3, 4, 6, 5)).astype(np.uint8)
VALUES = {"x": X, "y": 255 - X, "z": 255 - (255 - X)}


@dataclass
class Inverting:
    """A library of one kernel, which computes a share of the rows, one in each block.

    wrong: added to what it should compute. channels: of so many it writes each row.
    """

    wrong: int = 0
    channels: int = 4
    share: float = 1.0
    rows: int = 6
    constants: tuple[()] = ()
    asked: list[float] = field(default_factory=list)

    def crop(self, share: float) -> None:
        self.share = share
        self.asked.append(share)

    def left_out(self) -> int:
        """The share is 1 again by now."""
        return (6 - self.rows) * self.channels * 5

    def kernel(self, name: str) -> Callable[..., object]:
        layout = LAYOUTS[name]

        def call(x: np.ndarray, y: np.ndarray) -> None:
            value = LAYOUTS[(name == "z" and "y") or "x"].from_memory(x)
            made, before = 255 - value + np.uint8(self.wrong), layout.from_memory(y)
            self.rows = round(6 * self.share)
            before[:, : self.channels, : self.rows] = made[:, : self.channels, : self.rows]
            y[...] = layout.to_memory(before)

        return call

    def prepared(self, name: str, *buffers: Any) -> Callable[[], object]:
        return lambda: self.kernel(name)(*buffers)

    def run(self, feeds: Any) -> dict[str, np.ndarray]:
        raise AssertionError(feeds)


def run_of(library: Inverting) -> PartialRun:
    calls = (Call("invert", "y", ("x",), "y", "y", 0, operations=1000), Call("invert", "z", ("y",), "z", "z", 0))
    loaded = Loaded(Listing(calls, LAYOUTS, ("x",), ("z",)), library)
    return PartialRun(loaded, Cropping(500, library.crop, library.left_out))


def test_a_large_call_is_compared_in_part_and_a_small_one_whole() -> None:
    library = Inverting()
    run = run_of(library)
    result = list(run.outcomes(VALUES))
    assert [(outcome.elements, outcome.wrong, outcome.problem) for outcome in result] == [(60, 0, ""), (120, 0, "")]
    assert (run.shares, library.asked) == ({"y": 0.5}, [0.5, 1.0])


def test_what_is_wrong_in_a_part_is_found() -> None:
    first, _ = run_of(Inverting(wrong=3)).outcomes(VALUES)
    assert (first.elements, first.wrong) == (60, 60)
    assert first.problem.startswith("y (invert): 60 of 120 integers, by up to ")


@pytest.mark.parametrize("channels", [0, 2, 3])
def test_a_kernel_that_leaves_out_channels_is_told(channels: int) -> None:
    first, _ = run_of(Inverting(channels=channels)).outcomes(VALUES)
    count = channels * 3 * 5
    assert first.problem == (
        f"y (invert): only {count} of 120 elements were written, and the blocks that did not run write {count} at most"
    )


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_what_is_right_by_chance_is_not_taken_for_unwritten(dtype: str) -> None:
    """The memory before differs from what is wanted in every byte, in no way that a kernel could hit."""
    from ptqc.codegen.program.partial import _changed

    wanted = np.zeros((2, 300), dtype)
    before = _changed(wanted)
    assert (before.view(np.uint8) != 0).all()
    assert len(np.unique(before.view(np.uint8))) > 100
