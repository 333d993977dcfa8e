from ptqc.utils.lazy import Lazy


def test_items_are_computed_when_they_are_read() -> None:
    made = list[int]()

    def square(place: int) -> int:
        made.append(place)
        return place * place

    squares = Lazy(square, 10)
    assert (len(squares), made) == (10, [])
    assert (squares[3], squares[-1]) == (9, 81)
    some = squares[2:8:2]
    assert len(some) == 3
    assert made == [3, 9]
    assert list(some) == [4, 16, 36]
    assert list(zip(squares, range(2), strict=False)) == [(0, 0), (1, 1)]
    assert made == [3, 9, 2, 4, 6, 0, 1, 2]
