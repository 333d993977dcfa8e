"""What counts as wrong, and that the processes beside a measurement are there and go."""

import multiprocessing

import pytest
import steady

from ptqc.execution.speed import Speed


def told(ratio: float, low: float, high: float) -> Speed:
    return Speed(1.0, 1.0, ratio, low, high, 12)


@pytest.mark.parametrize(
    ("result", "truth", "wrong", "unsaid"),
    [
        ([told(1.2, 1.1, 1.3), told(1.4, 0.9, 2.0)], 1.2, 0, 1),
        ([told(1.2, 1.1, 1.3), told(0.8, 0.7, 1.1)], 0.9, 1, 1),
        ([told(0.8, 0.7, 0.9)], 1.1, 1, 0),
    ],
)
def test_an_interval_on_the_other_side_is_wrong(result: list[Speed], truth: float, wrong: int, unsaid: int) -> None:
    row = steady.judged(result, truth)
    assert (row["wrong"], row["unsaid"]) == (wrong, unsaid)


def test_busy_processes_end() -> None:
    with steady.beside(1):
        assert len(multiprocessing.active_children()) == 1
    assert not multiprocessing.active_children()
