import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from ptqc.utils.parallel import Shared, StreamStopped

PATIENCE = 10.0


def read_all(shared: Shared[int], reader: int) -> list[int]:
    with shared.reading(reader) as items:
        return list(items)


@pytest.mark.parametrize("readers", [1, 2, 5])
@pytest.mark.parametrize("size", [0, 1, 50])
def test_every_reader_gets_every_item(readers: int, size: int) -> None:
    shared = Shared[int](readers)
    with ThreadPoolExecutor(readers + 1) as executor:
        filled = executor.submit(shared.fill, range(size))
        result = list(executor.map(lambda reader: read_all(shared, reader), range(readers)))
        filled.result(PATIENCE)
    assert result == [list(range(size))] * readers
    assert shared._held.keys() <= {size}  # nothing but the end stays


def test_items_are_made_no_further_ahead_of_the_last_reader() -> None:
    made: list[int] = []
    reached = threading.Event()

    def items() -> Iterator[int]:
        for number in range(6):
            made.append(number)
            if number == 2:
                reached.set()
            yield number

    shared = Shared[int](2, lead=2)
    with ThreadPoolExecutor(2) as executor, shared.reading(1) as slow:
        filled = executor.submit(shared.fill, items())
        first = executor.submit(read_all, shared, 0)
        assert reached.wait(PATIENCE)
        assert not filled.done()
        assert made == [0, 1, 2]  # the third waits for its place
        assert list(slow) == list(range(6))
        filled.result(PATIENCE)
        assert first.result(PATIENCE) == list(range(6))


@pytest.mark.parametrize("fails", ["a reader", "the source"])
def test_an_error_of_one_ends_all(fails: str) -> None:
    def items() -> Iterator[int]:
        yield 0
        if fails == "the source":
            raise KeyError(fails)
        yield from count(1)

    def read(reader: int) -> None:
        with shared.reading(reader) as own:
            for number in own:
                if reader == 1 and number == 3:
                    raise KeyError(fails)

    shared = Shared[int](2)
    with ThreadPoolExecutor(3) as executor:
        everybody = [executor.submit(shared.fill, items()), *(executor.submit(read, reader) for reader in range(2))]
        errors = [one.exception(PATIENCE) for one in everybody]
    assert sorted(type(error).__name__ for error in errors) == ["KeyError", "StreamStopped", "StreamStopped"]
    assert shared.cause in errors
    assert str(shared.cause) == repr(fails)


def test_who_only_looks_on_can_stop_it() -> None:
    shared = Shared[int](1)
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(read_all, shared, 0)
        shared.stop(KeyError("interrupted"))
        with pytest.raises(StreamStopped):
            waiting.result(PATIENCE)
    assert str(shared.cause) == repr("interrupted")
