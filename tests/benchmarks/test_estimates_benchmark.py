"""What a stage is estimated to take, from the moments at which its steps were done."""

import estimates
import pytest
from estimates import Recorded


def stage(total: int | None, ended: float, *done: tuple[float, int]) -> Recorded:
    return Recorded("one", total, 100.0, 100.0 + ended, [(100.0 + moment, steps) for moment, steps in done])


def test_the_first_estimate_after_a_tenth_counts() -> None:
    """By then eight of ten steps are done."""
    result = stage(10, 20.0, (1.0, 4), (4.0, 4), (20.0, 2)).estimate()
    assert result == (pytest.approx(5.0), pytest.approx(4.0))


def test_nothing_is_told_before_a_tenth_of_the_steps() -> None:
    result = stage(100, 20.0, (3.0, 5), (8.0, 15), (20.0, 80)).estimate()
    assert result == (pytest.approx(40.0), pytest.approx(8.0))
    assert stage(None, 20.0, (3.0, 5)).estimate() is None
    assert stage(5, 20.0).estimate() is None


@pytest.mark.parametrize(("ended", "note"), [(20.0, ""), (14.0, ""), (12.0, "wrong"), (31.0, "wrong")])
def test_an_estimate_is_right_within_half_as_much_again(ended: float, note: str) -> None:
    row = estimates._row("task", stage(10, ended, (4.0, 2)))
    assert (row["estimate"], row["note"]) == (pytest.approx(20.0), note)
