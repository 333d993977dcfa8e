"""Work in threads: order, room, errors and early ends."""

import threading
import time
from collections.abc import Callable

import pytest

from ptqc.utils import parallel
from ptqc.utils.parallel import in_order


@pytest.fixture(params=[1, 4])
def workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    count: int = request.param
    monkeypatch.setattr(parallel, "processors", lambda: count)
    return count


class Meter:
    """Counts what runs at a time."""

    def __init__(self) -> None:
        self.lock, self.running, self.most, self.begun = threading.Lock(), 0, 0, list[int]()

    def around(self, function: Callable[[int], int]) -> Callable[[int], int]:
        def measured(item: int) -> int:
            with self.lock:
                self.begun.append(item)
                self.running += 1
                self.most = max(self.most, self.running)
            try:
                time.sleep(0.01)
                return function(item)
            finally:
                with self.lock:
                    self.running -= 1

        return measured


@pytest.mark.usefixtures("workers")
def test_results_come_in_order() -> None:
    def slower_first(item: int) -> int:
        time.sleep(0.02 / (1 + item))
        return item * item

    assert list(in_order(slower_first, range(12))) == [i * i for i in range(12)]
    assert list(in_order(slower_first, [])) == []


def test_as_many_as_processors_work_at_a_time(workers: int) -> None:
    meter = Meter()
    list(in_order(meter.around(lambda item: item), range(12)))
    assert meter.most == workers


@pytest.mark.usefixtures("workers")
def test_one_item_needs_no_thread_of_its_own() -> None:
    assert list(in_order(lambda _item: threading.current_thread(), [0])) == [threading.current_thread()]


def test_what_needs_too_much_room_works_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "processors", lambda: 4)
    small, large = Meter(), Meter()
    list(in_order(small.around(lambda item: item), range(12), lambda _: parallel.ROOM // 2))
    list(in_order(large.around(lambda item: item), range(12), lambda _: 3 * parallel.ROOM))
    assert (small.most, large.most) == (2, 1)


@pytest.mark.usefixtures("workers")
def test_an_error_reaches_the_caller_and_ends_the_rest() -> None:
    meter = Meter()

    def fails(item: int) -> int:
        if item == 2:
            raise ValueError("the third")
        return item

    with pytest.raises(ValueError, match="the third"):
        list(in_order(meter.around(fails), range(1000)))
    assert len(meter.begun) < 100


@pytest.mark.usefixtures("workers")
def test_nothing_begins_after_the_caller_stopped() -> None:
    meter = Meter()
    results = in_order(meter.around(lambda item: item), range(1000))
    assert next(results) == 0
    results.close()
    assert len(meter.begun) < 100


def test_few_results_wait_for_a_slow_caller() -> None:
    begun = list[int]()

    def work(item: int) -> int:
        begun.append(item)
        return item

    taken = []
    for result in in_order(work, range(50), workers=2, ahead=1):
        taken.append(result)
        assert len(begun) <= len(taken) + 3
    assert taken == list(range(50))
