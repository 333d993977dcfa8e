"""Runs of neighbouring elements, copied and filled by whole vectors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.kernel import expressed, fill, pieces, span
from ptqc.runtime.lengths import Size, varies


@dataclass(frozen=True)
class ElementRun:
    """`length` elements of a sample in a buffer, from `start` on."""

    buffer: Any
    sample: Any
    start: Any
    length: Size

    def copy_from(self, source: Any, start: Any, isa: Isa) -> None:
        """Copy the elements of the same sample of another buffer, from `start` on."""
        self._each(isa, lambda offset, lanes: source[self.sample, span(start + offset, lanes)])

    def copy_from_constant(self, source: Any, isa: Isa) -> None:
        """Copy the elements from a buffer that has no axis for samples."""
        self._each(isa, lambda offset, lanes: source[span(offset, lanes)])

    def fill(self, value: Any, isa: Isa) -> None:
        """Make all elements `value`."""
        self._each(isa, lambda _offset, lanes: fill(value, lanes))

    def _each(self, isa: Isa, value: Callable[[Any, int], Any]) -> None:
        """Store value(offset, lanes), vector by vector; the last ones get shorter."""
        widest = isa.widest(str(self.buffer.dtype))
        if varies([self.length]):
            length = expressed(self.length)
            with T.serial(length // widest) as index:
                self._store(index * widest, widest, value)
            with T.serial(length % widest) as rest:
                self._store(length // widest * widest + rest, 1, value)
            return
        vectors = self.length // widest
        if vectors:
            with T.serial(vectors) as index:
                self._store(index * widest, widest, value)
        for offset, lanes in pieces(self.length - vectors * widest, widest):
            self._store(vectors * widest + offset, lanes, value)

    def _store(self, offset: Any, lanes: int, value: Callable[[Any, int], Any]) -> None:
        T.buffer_store(self.buffer, value(offset, lanes), [self.sample, span(self.start + offset, lanes)])
