"""A copy in which elements at computed places are others, or are joined with others.

Places may repeat, so the work on a sample is not shared: updates count in their order, as in ONNX Runtime. All values
are row-major, with every axis that the operator looks at.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels.families import build
from ptqc.codegen.kernels.families.indexing import within
from ptqc.codegen.kernels.writing import KernelGrid, KernelSource, expressed
from ptqc.codegen.program.layout import Layout
from ptqc.runtime.lengths import Size

# By what the attribute `reduction` may be, what becomes of an element and its update.
JOINS: Mapping[str, Callable[[Any, Any], Any]] = {
    "none": lambda _old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": lambda old, new: T.min(old, new),
    "max": lambda old, new: T.max(old, new),
}


def scatter_elements(x: Layout, places: Layout, updates: Layout, y: Layout, axis: int, reduction: str) -> KernelSource:
    """Along an axis, each update goes to its own place in x."""

    def element(index: Any, sample: Any, place: Sequence[Any]) -> list[Any]:
        target = list(place)
        target[axis] = T.Bind(within(index[sample, places.offset(place)], x.shape[axis]))
        return target

    return _scattered("scatter_elements", [x, places, updates], y, element, reduction)


def scatter_nd(x: Layout, places: Layout, updates: Layout, y: Layout, reduction: str) -> KernelSource:
    """Slices of updates go to places whose last axis lists the indices of the first axes of x."""
    depth, outer = places.shape[-1], len(places.shape) - 1

    def element(index: Any, sample: Any, place: Sequence[Any]) -> list[Any]:
        first = [T.Bind(within(index[sample, places.offset([*place[:outer], i])], x.shape[i])) for i in range(depth)]
        return [*first, *place[outer:]]

    return _scattered("scatter_nd", [x, places, updates], y, element, reduction)


def _scattered(
    family: str,
    inputs: Sequence[Layout],
    y: Layout,
    element: Callable[[Any, Any, Sequence[Any]], list[Any]],
    reduction: str,
) -> KernelSource:
    """element: gets the places, the sample and the indices of an update; gives those of the element that it is for."""
    x, _places, updates = inputs
    join = JOINS[reduction]

    def body(grid: KernelGrid, source: Any, index: Any, new: Any, out: Any) -> None:
        with grid.rows(1, x.elements) as (sample, _):
            with T.serial(expressed(x.elements)) as place:
                T.buffer_store(out, source[sample, place], [sample, place])
            with _in_order(updates.shape) as place:
                target = T.Bind(y.offset(element(index, sample, place)))
                value = join(out[sample, target], new[sample, updates.offset(place)])
                T.buffer_store(out, value, [sample, target])

    return build(family, inputs, [], y, body)


@contextmanager
def _in_order(shape: Sequence[Size]) -> Iterator[list[Any]]:
    """Loops over all indices within a shape, one turn after the other."""
    with ExitStack() as loops:
        yield [loops.enter_context(T.serial(expressed(size))) for size in shape]
