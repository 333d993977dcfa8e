"""Variants of a kernel that take turns: what counts is the median of their times, and only of those that are right."""

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any, ClassVar

import numpy as np
import pytest

from ptqc.codegen.cuda import trial_worker
from ptqc.codegen.cuda.trial_worker import GpuTrials
from ptqc.codegen.cuda.trials import KernelTrial, TimedVariant, TimingEffort, TrialJob
from ptqc.errors import GpuMemoryError, TargetError

TRIAL = KernelTrial(
    "dense_mma_1",
    (("uint8", (64,)), ("float32", (3,)), ("int64", (2,))),
    ("uint8", (32,)),
    (TimedVariant("first", "f", 2), TimedVariant("second", "g", 1), TimedVariant("third", "h", 0)),
)


class Library:
    """Kernels that take the microseconds that they are given, in turns. broken: those that do not run."""

    def __init__(self, times: dict[str, Iterator[float]], broken: str = "", wrong: str = "", most: int = 64) -> None:
        self.times, self.broken, self.wrong, self.most = times, broken, wrong, most
        self.taken, self.given = 0.0, dict[str, tuple[Any, ...]]()

    def put(self, array: np.ndarray) -> np.ndarray:
        if len(array) > self.most:
            raise RuntimeError("CUDA: out of memory")
        return array

    def pull(self, array: np.ndarray) -> np.ndarray:
        return array.copy()

    def launcher(self, name: str, *tensors: np.ndarray) -> Callable[[int], None]:
        self.given[name] = tensors

        def launch(_stream: int) -> None:
            if name == self.broken:
                raise RuntimeError("too many resources requested for launch")
            self.taken += next(self.times[name])
            tensors[-1][...] = 8 if name == self.wrong else 7

        return launch


class Clock:
    """Tells what the library took. repeated: how often launches were put into a graph."""

    library: ClassVar[Library]

    def __init__(self, _index: int) -> None:
        pass

    def microseconds(self, ask: Callable[[], object]) -> float:
        before = self.library.taken
        ask()
        return self.library.taken - before

    def repeated(self, launch: Callable[[int], object], times: int) -> Callable[[], float]:
        def once() -> float:
            return self.microseconds(lambda: [launch(0) for _ in range(times)]) / times

        return once


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Times of the trial on a library."""

    def times(library: Library, ends: float = np.inf) -> Any:
        monkeypatch.setattr(trial_worker, "GpuClock", Clock)
        monkeypatch.setattr(Clock, "library", library, raising=False)
        return GpuTrials(library, TimingEffort((1, 64), 15), ends).times(TRIAL, ["a", "b", "c"])  # type: ignore[arg-type]

    return times


def steady(**times: float) -> dict[str, Iterator[float]]:
    return {name: cycle([each]) for name, each in times.items()}


def test_each_variant_gets_the_same_inputs_and_its_own_constants(found: Callable[..., Any]) -> None:
    library = Library(steady(f=10.0, g=8.0, h=12.0))
    times = found(library)
    assert times.microseconds == {"first": (10.0, 10.0), "second": (8.0, 8.0), "third": (12.0, 12.0)}
    assert times.of_first == pytest.approx({"first": 1.0, "second": 0.8, "third": 1.2})
    assert times.dropped == {}
    codes, reals, places, *constants, _ = library.given["f"]
    assert constants == ["a", "b"]
    assert library.given["g"][3:-1] == ("c",)
    assert len(library.given["h"]) == 4
    assert all(one is other for one, other in zip(library.given["f"][:3], library.given["g"][:3], strict=True))
    assert (codes.shape, codes.max() <= 126, len(np.unique(codes)) > 100) == ((64, 64), True, True)
    assert reals.std() > 0.5
    assert not places.any()


def test_a_moment_in_which_all_are_slower_does_not_count(found: Callable[..., Any]) -> None:
    """Rounds in which the GPU's clock is half as fast; and single outliers."""
    slow = [1.0, 1.0, 2.0, 2.0, 2.0]
    first = cycle([500.0 * share for share in slow])
    second = cycle([450.0 * share if place else 9000.0 for place, share in enumerate(slow * 2)])
    times = found(Library({"f": first, "g": second, "h": cycle([500.0])}))
    assert times.of_first["second"] < 1


def test_what_does_not_run_or_is_wrong_is_dropped_and_told(found: Callable[..., Any]) -> None:
    times = found(Library(steady(f=10.0, h=5.0), broken="g", wrong="h"))
    assert times.microseconds == {"first": (10.0, 10.0)}
    assert times.dropped == {
        "second": "does not run: too many resources requested for launch",
        "third": "gives other integers than the predicted tiles",
    }


def test_a_first_variant_that_does_not_run_ends_it(found: Callable[..., Any]) -> None:
    with pytest.raises(TargetError, match="the GPU does not run f: too many resources"):
        found(Library(steady(g=1.0, h=1.0), broken="f"))


def test_a_batch_that_has_no_room_is_left_out(found: Callable[..., Any]) -> None:
    times = found(Library(steady(f=10.0, g=8.0, h=12.0), most=1))
    assert times.microseconds == {"first": (10.0,), "second": (8.0,), "third": (12.0,)}
    with pytest.raises(GpuMemoryError, match="no memory left for 1 samples of dense_mma_1"):
        found(Library(steady(f=10.0, g=8.0, h=12.0), most=0))


def test_few_rounds_have_to_do_once_time_is_over(found: Callable[..., Any]) -> None:
    launched = []

    def counted(microseconds: float) -> Iterator[float]:
        while True:
            launched.append(microseconds)
            yield microseconds

    found(Library({"f": counted(500.0), "g": counted(500.0), "h": counted(500.0)}, most=1), ends=0.0)
    # A run of each, one that tells how many launches make a graph, and seven rounds.
    assert len(launched) == 3 + 1 + 7 * 3


def test_a_job_is_read_as_it_was_written(tmp_path: Any) -> None:
    job = TrialJob((TRIAL,), TimingEffort((1, 64), 3, 2.5), is_emulator=True)
    job.write(tmp_path)
    assert TrialJob.read(tmp_path) == job
