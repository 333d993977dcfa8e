"""How operators that move, select, repeat and join values lead the places of channels on."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ptqc.ir.channels import Factor, Role, Rule, TieWalk
from ptqc.ir.nodes import constant, input_of, integer, integers
from ptqc.ir.operators import Trait, named

Found = Sequence[np.ndarray] | None


def reshaped(walk: TieWalk, node: ir.Node) -> Found:
    """Axes that are joined or cut, each group of them for itself."""
    walk.keep(*node.inputs[1:])
    before, after = walk.shape(node.inputs[0]), walk.shape(node.outputs[0])
    numbers = walk.numbers(node.inputs[0])
    full, sizes = list[int](), list[int]()
    for old, new in axis_groups(before, after):
        is_moved = any(numbers.shape[axis] > 1 for axis in old)
        full += [before[axis] if is_moved else 1 for axis in old]
        sizes += [after[axis] if is_moved else 1 for axis in new]
    return [walk.narrowed(walk.spread(numbers, full).reshape(sizes))]


def axis_groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Axes of two shapes of one tensor, in the smallest groups that have the same elements."""
    groups: list[tuple[list[int], list[int]]] = []
    old, new = [list[int](), list[int]()]
    one = other = 1
    i = j = 0
    while i < len(before) or j < len(after):
        if j == len(after) or (i < len(before) and one <= other):
            one, i = one * before[i], i + 1
            old.append(i - 1)
        else:
            other, j = other * after[j], j + 1
            new.append(j - 1)
        if one == other and old and new:
            groups.append((old, new))
            old, new, one, other = [], [], 1, 1
    if old or new:  # axes of size 1 at the end, of one shape alone
        last = groups.pop() if groups else ([], [])
        groups.append((last[0] + old, last[1] + new))
    return groups


def transposed(walk: TieWalk, node: ir.Node) -> Found:
    """Axes in another order."""
    numbers = walk.numbers(node.inputs[0])
    order = integers(node, "perm", range(numbers.ndim)[::-1])
    return [walk.taken(numbers, _places(numbers).transpose(order))]


def sliced(walk: TieWalk, node: ir.Node) -> Found:
    """Parts along some axes."""
    numbers, given = walk.numbers(node.inputs[0]), [constant(value) for value in node.inputs[1:]]
    shape = walk.shape(node.inputs[0])
    starts, ends, axes, steps = [None if x is None else x.tolist() for x in [*given, None, None][:4]]
    if axes is None and input_of(node, 3) is None and starts is not None:
        axes = list(range(len(starts)))
    if axes is None:
        return None
    index = [slice(None)] * numbers.ndim
    for turn, axis in enumerate(x % numbers.ndim for x in axes):
        if numbers.shape[axis] == 1 and shape[axis] > 1:
            continue  # nothing is moved along it
        if starts is None or ends is None or (steps is None and input_of(node, 4) is not None):
            return None
        index[axis] = _part(starts[turn], ends[turn], 1 if steps is None else steps[turn])
    return [walk.taken(numbers, _places(numbers)[tuple(index)])]


def _part(start: int, end: int, step: int) -> slice:
    """A slice of ONNX, whose end beyond the first element is a large negative number."""
    return slice(start, None if step < 0 and end < -(2**30) else end, step)


def split(walk: TieWalk, node: ir.Node) -> Found:
    """Parts one after the other."""
    numbers = walk.numbers(node.inputs[0])
    axis = integer(node, "axis", 0) % numbers.ndim
    if numbers.shape[axis] == 1:
        return [numbers for _ in node.outputs]
    ends = np.cumsum([walk.shape(value)[axis] for value in node.outputs])
    return [walk.taken(numbers, places) for places in np.split(_places(numbers), ends[:-1], axis)]


def gathered(walk: TieWalk, node: ir.Node) -> Found:
    """Places by constant indices, or rows of a constant table."""
    table, indices = node.inputs
    rank, places = len(walk.shape(table)), constant(indices)
    axis = integer(node, "axis", 0) % rank
    if constant(table) is not None:
        return None if places is not None or table is None else _looked_up(walk, node, table, axis)
    numbers = walk.numbers(table)
    if numbers.shape[axis] == 1:
        walk.keep(indices)
        ones = (1,) * len(walk.shape(indices))
        return [numbers.reshape((*numbers.shape[:axis], *ones, *numbers.shape[axis + 1 :]))]
    return None if places is None else [walk.taken(numbers, _places(numbers).take(places, axis))]


def _looked_up(walk: TieWalk, node: ir.Node, table: ir.Value, axis: int) -> Found:
    shape = walk.shape(table)
    if axis != 0 or len(shape) != 2:
        return None
    walk.keep(node.inputs[1])
    given = walk.sets.fresh(shape[1])
    walk.take(table, Role(shape, (Factor((1,), given),)))
    return [given.reshape((*(1,) * len(walk.shape(node.inputs[1])), -1))]


def joined(walk: TieWalk, node: ir.Node) -> Found:
    """Concat: places behind each other, or, where none are moved along that axis, joined."""
    parts = [walk.numbers(value) for value in node.inputs]
    shapes = [walk.shape(value) for value in node.inputs]
    rank = len(shapes[0])
    axis = integer(node, "axis", 0) % rank
    wide = list(np.broadcast_shapes(*(x.shape[:axis] + x.shape[axis + 1 :] for x in parts)))
    is_moved = any(x.shape[axis] > 1 for x in parts)
    spread = [
        walk.spread(x, (*wide[:axis], shape[axis] if is_moved else 1, *wide[axis:]))
        for x, shape in zip(parts, shapes, strict=True)
    ]
    if not is_moved:
        for other in spread[1:]:
            walk.sets.join(spread[0], other)
        return [walk.narrowed(spread[0])]
    made = np.concatenate(spread, axis)
    _trace_parts(walk, made, spread, axis)
    return [walk.narrowed(made)]


def _trace_parts(walk: TieWalk, made: np.ndarray, parts: Sequence[np.ndarray], axis: int) -> None:
    """Which place of which part each is."""
    source = np.concatenate([part.ravel() for part in parts])
    starts = np.cumsum([0, *(part.size for part in parts)])
    places = [start + _places(part) for start, part in zip(starts, parts, strict=False)]
    walk.sets.trace(made, np.concatenate([np.full(x.shape, i) for i, x in enumerate(parts)], axis))
    walk.sets.trace_taken(made, source, np.concatenate(places, axis))


def expanded(walk: TieWalk, node: ir.Node) -> Found:
    """Repeated along axes of size 1."""
    walk.keep(*node.inputs[1:])
    numbers, rank = walk.numbers(node.inputs[0]), len(walk.shape(node.outputs[0]))
    return [numbers.reshape((*(1,) * (rank - numbers.ndim), *numbers.shape))]


def padded(walk: TieWalk, node: ir.Node) -> Found:
    """With more places along axes that nothing is moved along."""
    numbers = walk.numbers(node.inputs[0])
    walk.keep(*node.inputs[1:])
    before, after = walk.shape(node.inputs[0]), walk.shape(node.outputs[0])
    is_moved = any(size > 1 and a != b for size, a, b in zip(numbers.shape, before, after, strict=True))
    return None if is_moved else [numbers]


def measured(walk: TieWalk, node: ir.Node) -> Found:
    """What depends on sizes alone."""
    return [np.zeros((1,) * len(walk.shape(node.outputs[0])), np.int64)]


def _places(numbers: np.ndarray) -> np.ndarray:
    return np.arange(numbers.size).reshape(numbers.shape)


MOVES: Mapping[str, Rule] = {
    **dict.fromkeys(named(Trait.RESHAPES), reshaped),
    **dict.fromkeys(named(Trait.MEASURES), measured),
    "Transpose": transposed,
    "Slice": sliced,
    "Split": split,
    "Gather": gathered,
    "Concat": joined,
    "Expand": expanded,
    "Pad": padded,
}
