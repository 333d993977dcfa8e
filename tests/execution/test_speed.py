"""Comparing speeds: the interval's coverage, and what is told of models whose times are known."""

from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse

from ptqc.execution import speed
from ptqc.execution.speed import Speed, Subject, compare, interval


def product(size: int) -> Subject:
    model = parse(f"g (float[1,{size}] x) => (float[1,{size}] y) {{ y = MatMul(x, w) }}", w=noise(size, size))
    return Subject(model, {"x": noise(1, size)})


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "SECONDS", 0.15)


@pytest.mark.parametrize("rounds", [11, 12])
def test_the_interval_leaves_out_one_at_either_end(rounds: int) -> None:
    assert interval([*range(rounds - 1), 1000]) == (1, rounds - 2)


def test_few_values_are_told_whole() -> None:
    assert interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert interval([5.0]) == (5.0, 5.0)


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    """Of skewed draws with a known median."""
    draws = np.random.default_rng(0).lognormal(np.log(1.3), 1.0, (4000, speed.ROUNDS))
    result = [low <= 1.3 <= high for low, high in map(interval, draws)]
    assert speed.CONFIDENCE - 0.005 <= np.mean(result) < 1


@pytest.mark.usefixtures("short")
def test_the_larger_model_is_slower() -> None:
    small, large = product(32), product(512)
    faster, slower = counted(large, small), counted(small, large)
    assert 1 < faster.low <= faster.ratio <= faster.high
    assert slower.low <= slower.ratio <= slower.high < 1
    assert faster.float_ms > faster.compiled_ms > 0


def counted(a: Subject, b: Subject) -> Speed:
    result = compare(a, b)
    assert result is not None
    return result


def told(monkeypatch: pytest.MonkeyPatch, clock: Callable[[object], float]) -> Speed:
    """What is told of one model against itself when the processor's time is what `clock` says."""
    monkeypatch.setattr(speed, "SECONDS", 0.0)
    monkeypatch.setattr(speed, "processor_ns", clock)
    return counted(product(4), product(4))


def test_a_steady_clock_leaves_no_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    result = told(monkeypatch, lambda _: 2e6)
    assert result == Speed(2.0, 2.0, 1.0, 1.0, 1.0, speed.ROUNDS)


def test_a_clock_without_sense_spreads_over_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The times of both come from one heavy-tailed distribution, as beside other programs."""
    draws = iter(np.random.default_rng(5).pareto(0.7, 100_000) + 1)
    result = told(monkeypatch, lambda _: float(next(draws)))
    assert result.low < 1 < result.high
    assert result.high / result.low > 1.2


def test_disturbed_runs_do_not_count() -> None:
    """Half of the runs take a hundred times as long."""
    numbers: Iterator[int] = count()
    result = speed._round(
        [lambda: None] * 2, speed.TURN, 0.0, np.random.default_rng(0), lambda _: 1e8 if next(numbers) % 2 else 1e6
    )
    assert result == [1e6, 1e6]


def test_a_slow_model_is_run_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "LONGEST", 0.0)
    assert told(monkeypatch, lambda _: 1e6).rounds == speed.FEWEST_ROUNDS


@pytest.mark.parametrize("seconds", [0.0, 100.0])
def test_files_that_open_slowly_are_opened_once(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    opened = []
    session = Subject.session
    monkeypatch.setattr(Subject, "session", lambda self: opened.append(1) or session(self))
    monkeypatch.setattr(speed, "SECONDS", seconds)
    monkeypatch.setattr(speed, "_round", lambda *_: [1.0, 1.0])
    compare(product(4), product(4))
    assert len(opened) == 2 * (1 if seconds == 0 else speed.ROUNDS)


def test_models_given_as_ir_and_as_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "SECONDS", 0.0)
    subject = product(4)
    assert isinstance(subject.model, ir.Model)
    assert counted(subject, Subject(ir.to_proto(subject.model), subject.feeds)).rounds == speed.ROUNDS
