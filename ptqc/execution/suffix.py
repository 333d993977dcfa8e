"""The rest of a graph, run from the values at hand in a walk, some of them replaced."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from math import ceil, sqrt
from threading import Lock

import numpy as np
import onnxruntime as ort

from ptqc.execution.compressed import Held, real
from ptqc.execution.walk import Slicer, Values, Walk
from ptqc.utils.parallel import in_order

Constants = Mapping[str, np.ndarray]


class Piece:
    """Some nodes of a graph, with a session of their own that is opened for the first values."""

    def __init__(self, slicer: Slicer, indices: Sequence[int], wanted: Sequence[str], constants: Constants) -> None:
        made = slicer.made_by(indices)
        self.reads = slicer.read_by(indices)
        self._slicer, self._indices, self._constants = slicer, indices, constants
        self._outputs = [name for name in dict.fromkeys(wanted) if name in made]
        self._session: ort.InferenceSession | None = None
        self._opening = Lock()

    def run(self, values: Mapping[str, Held]) -> Values:
        """Run the piece; gives those of the wanted values that it computes."""
        if not self._outputs:
            return {}
        source = {name: values[name] for name in self.reads}
        results = self._opened(source).run(self._outputs, {name: real(value) for name, value in source.items()})
        return dict(zip(self._outputs, results, strict=True))

    def _opened(self, source: Mapping[str, Held]) -> ort.InferenceSession:
        with self._opening:
            if self._session is None:
                self._session = self._slicer.session(self._indices, source, self._outputs, self._constants)
            return self._session


class Suffix:
    """Consecutive pieces that make the graph's outputs."""

    def __init__(self, walk: Walk, pieces: Sequence[Piece]) -> None:
        self._walk, self._pieces = walk, pieces

    def run(self, override: Mapping[str, Sequence[Held]], batches: int | None = None) -> Iterator[Values]:
        """The graph's outputs in each batch (or the first few) where the values in `override` replace those at hand.

        Each is computed shortly before it is read.
        """
        values = {**self._walk.values, **override}
        count = self._walk.count if batches is None else batches
        return in_order(partial(self._run, values), range(count), workers=self._walk.workers, ahead=1)

    def _run(self, several: Mapping[str, Sequence[Held]], batch: int) -> Values:
        values = {name: of_batches[batch] for name, of_batches in several.items()}
        for piece in self._pieces:
            values |= piece.run(values)
        return {name: real(values[name]) for name in self._walk.slicer.outputs}


class Suffixes:
    """The rest of a walk's graph behind any node.

    A session for all that follows, opened at each of n nodes, would load the last weights n times. So the graph is cut
    into √n stretches, and what follows the stretch that the walk is in is one session for all of its nodes.
    """

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._later: dict[int, Piece] = {}

    @cached_property
    def _stretch(self) -> int:
        return ceil(sqrt(len(self._walk)))

    def behind(self, after: int) -> Suffix:
        """What runs behind node `after`; -1: the whole graph."""
        first = after + 1
        cut = ceil(first / self._stretch) * self._stretch
        later = self._from(cut)
        return Suffix(self._walk, [self._piece(first, cut, [*later.reads, *self._walk.slicer.outputs]), later])

    def whole(self, constants: Constants) -> Suffix:
        """The whole graph with some initializers replaced."""
        slicer = self._walk.slicer
        return Suffix(self._walk, [Piece(slicer, slicer.needed(0, slicer.outputs), slicer.outputs, constants)])

    def _from(self, first: int) -> Piece:
        """All nodes from one on; kept until the walk is behind it."""
        if first not in self._later:
            outputs = self._walk.slicer.outputs
            self._later = {first: self._piece(first, len(self._walk), outputs)}
        return self._later[first]

    def _piece(self, first: int, end: int, wanted: Sequence[str]) -> Piece:
        """The nodes between two places that the wanted values need."""
        slicer = self._walk.slicer
        return Piece(slicer, [i for i in slicer.needed(first, wanted) if i < end], wanted, self._walk.constants)
