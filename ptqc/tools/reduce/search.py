"""Which parts of a graph are tried, in which order."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from ptqc.tools.reduce.cut import Subgraph, Whole

# Delta debugging: the smallest part of a whole that still fails (Zeller and Hildebrandt, 2002).

T = TypeVar("T")
Part = tuple[T, ...]


def ddmin(whole: Sequence[T], fails: Callable[[Part[T]], bool]) -> Part[T]:
    """A part that fails, none of whose elements can be left out alone; order is kept.

    fails: whether a part fails; it is not asked about the whole, which does, nor about nothing.
    """
    part, pieces = tuple(whole), 2
    while len(part) > 1:
        if (alone := next(filter(fails, _alone(part, pieces)), None)) is not None:
            part, pieces = alone, 2
        elif pieces > 2 and (complement := next(filter(fails, _without(part, pieces)), None)) is not None:
            part, pieces = complement, pieces - 1
        elif pieces < len(part):
            pieces = min(2 * pieces, len(part))
        else:
            break
    return part


def _spans(part: Part[T], pieces: int) -> Iterator[slice]:
    for i in range(pieces):
        yield slice(len(part) * i // pieces, len(part) * (i + 1) // pieces)


def _alone(part: Part[T], pieces: int) -> Iterator[Part[T]]:
    return (part[span] for span in _spans(part, pieces))


def _without(part: Part[T], pieces: int) -> Iterator[Part[T]]:
    return (part[: span.start] + part[span.stop :] for span in _spans(part, pieces))


def smallest(whole: Whole, fails: Callable[[Subgraph], bool]) -> Subgraph:
    """A small part that fails: nodes are cut off, then bypassed one by one, then outputs left out.

    fails: whether a part fails; the whole does.
    """
    cut = Subgraph(ddmin(whole.all().nodes, lambda nodes: fails(Subgraph(nodes))))
    while (shorter := next(filter(fails, whole.bypasses(cut)), None)) is not None:
        cut = shorter
    for name in whole.outputs(cut):
        without = replace(cut, hidden=cut.hidden | {name})
        if whole.outputs(without) != whole.outputs(cut) and fails(without):
            cut = without
    return cut
