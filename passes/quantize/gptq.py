"""GPTQ: rounding a layer's weights column by column, each error passed on to the columns not yet rounded.

Frantar, Ashkboos, Hoefler, Alistarh 2022 (arXiv 2210.17323), algorithm 1: with U the upper Cholesky factor of H⁻¹,
e_j = (w_j − Q(w_j)) / U_jj, then W_{:,j:} −= e_j · U_{j,j:}, columns of large H_jj first. All groups of a layer are
solved together, so a depthwise layer is one batch of small problems.

Pairs of columns that share a code are rounded together, by the metric (U_JJ U_JJᵀ)⁻¹ (van Baalen et al. 2024, GPTVQ,
arXiv 2402.15319).

Where two of each four columns are to be zeros, which ones is decided when GPTQ comes to them, and what they held is
passed on like any error (Frantar, Alistarh 2023, SparseGPT, arXiv 2301.00774, section 3.3). The paper takes the columns
of least w_j² / U_jj², each for itself; here the pattern is taken that costs least as a whole, w_P (A_PP)⁻¹ w_Pᵀ with P
the columns that become zero and A = U_JJᵀ U_JJ the inverse of the second moments of the four and all later ones.

Coordinate descent follows for few bits (Behdin et al. 2023, QuantEase, arXiv 2309.01885): with everything else held,
the best code of column j is Q(q_j − ((Ŵ − W) H)_j / (H_jj s)); the error never grows. Above 4 bits it gains too little
for what it costs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ptqc.formats import Format, Grid, Scaled, scales
from ptqc.formats.base import ColumnRounding, costs_of, largest
from ptqc.ir.layers import Layer
from ptqc.passes.quantize import moments

# Numbers of a weight of a model beyond memory that are worked on together.
NUMBERS = 2**22
BLOCK = 128
# Columns of a block among which errors are passed on one by one; to the others they go as products of matrices.
STRETCH = 16
SMALLEST_HALF = 64
DAMPING = 0.01  # of the mean diagonal
DESCENDED_BITS = 4
# Share by which an error must be less than another that came first: smaller differences may be those of sums.
CLEAR = 1e-4
# Numbers of rows that several scales are tried for: what a longer row gains is little, and takes long.
NARROW = 64


@dataclass(frozen=True, eq=False)
class Rounded:
    """codes (groups, R, d) and scale (groups, R) float32."""

    codes: np.ndarray
    scale: np.ndarray

    @property
    def weight(self) -> np.ndarray:
        """scale · codes."""
        return np.asarray(self.codes.astype(np.float32) * self.scale[..., None], np.float32)

    def better(self, other: "Rounded", matrix: np.ndarray, second: np.ndarray, *, whole: bool = False) -> "Rounded":
        """Of each row the one of clearly less error.

        matrix (groups, R, d): what was rounded. second: moments, or their diagonal. whole: one answer is taken for all
        rows, as they depend on each other.
        """
        mine, others = (moments.error(matrix - one.weight, second) for one in (self, other))
        if whole:
            mine, others = mine.sum(keepdims=True), others.sum(keepdims=True)
        is_less = others < mine * np.float32(1 - CLEAR)
        codes = np.where(is_less[..., None], other.codes, self.codes)
        return Rounded(codes, np.where(is_less, other.scale, self.scale))

    @classmethod
    def joined(cls, parts: Sequence["Rounded"]) -> "Rounded":
        """Stretches of outputs as one."""
        if len(parts) == 1:
            return parts[0]
        codes, scale = (np.concatenate(arrays, 1) for arrays in zip(*((p.codes, p.scale) for p in parts), strict=True))
        return cls(codes, scale)


def inverse_factor(second: np.ndarray, damping: float = DAMPING) -> np.ndarray:
    """U (groups, d, d) with UᵀU = (H + damping · mean diagonal)⁻¹, upper triangular; computed in float64."""
    damped = _damped(second.astype(np.float64), damping)[:, ::-1, ::-1]
    # chol(inv(H)) = reversed inverse of the Cholesky factor of the reversed H, without forming inv(H).
    lower = np.linalg.cholesky(damped)
    return np.ascontiguousarray(_invert_lower(lower)[:, ::-1, ::-1], np.float32)


def _damped(second: np.ndarray, damping: float) -> np.ndarray:
    """second with a share of its mean diagonal added to the diagonal."""
    damped = second.copy()
    diagonal = np.einsum("gii->gi", damped)
    mean = diagonal.mean(-1, keepdims=True)
    diagonal += damping * np.where(mean > 0, mean, 1.0)
    return damped


def _invert_lower(lower: np.ndarray) -> np.ndarray:
    """Inverse of lower triangular matrices by halves, which is mostly matrix products."""
    width = lower.shape[-1]
    if width <= SMALLEST_HALF:
        return np.asarray(np.linalg.inv(lower))
    half = width // 2
    first, second = _invert_lower(lower[:, :half, :half]), _invert_lower(lower[:, half:, half:])
    inverse = np.zeros_like(lower)
    inverse[:, :half, :half], inverse[:, half:, half:] = first, second
    inverse[:, half:, :half] = -second @ (lower[:, half:, :half] @ first)
    return inverse


@dataclass(frozen=True, eq=False)
class Factored:
    """Second moments (groups, d, d) with the factor of their damped inverse, for columns in the order of `order`.

    order (groups, d): columns of the largest second moments first, pairs of neighbours together.
    """

    second: np.ndarray
    order: np.ndarray
    factor: np.ndarray

    @classmethod
    def of(cls, second: np.ndarray, damping: float = DAMPING, together: int = 1, *, alike: bool = False) -> "Factored":
        """Second moments, ordered by pairs of columns (singly where d is odd), with the factor of their inverse.

        together: neighbours that stay so, a divisor of d. alike: all groups have their columns in one order.
        """
        order = _activation_order(second, max(together, 1 + (second.shape[-1] + 1) % 2), alike)
        ordered = np.take_along_axis(np.take_along_axis(second, order[:, :, None], 1), order[:, None, :], 2)
        return cls(second, order, inverse_factor(ordered, damping))

    @cached_property
    def damped(self) -> np.ndarray:
        """Second moments that coordinate descent can divide by."""
        return _damped(self.second, DAMPING)

    def solve(self, rows: np.ndarray) -> np.ndarray:
        """Rows (groups, R, d) times the damped inverse."""
        return self.restored(self.ordered(rows) @ self.factor.swapaxes(1, 2) @ self.factor)

    def ordered(self, rows: np.ndarray) -> np.ndarray:
        """Rows (groups, R, d) with their columns in order."""
        return np.take_along_axis(rows, self.order[:, None, :], 2)

    def restored(self, rows: np.ndarray) -> np.ndarray:
        """The inverse of `ordered`."""
        return np.take_along_axis(rows, np.argsort(self.order, axis=1)[:, None, :], 2)


@dataclass(frozen=True, eq=False)
class RoundingTarget:
    """What is rounded: weights (groups, R, d), where they may lie, and the rounds of coordinate descent at most.

    whole: the unit of the scales of the weight that this is a part of.
    """

    matrix: np.ndarray
    grid: Grid
    rounds: int = 0
    whole: float | None = None

    @cached_property
    def unit(self) -> float:
        """The unit of the scales."""
        return scales.unit_in(self.grid.scale) if self.whole is None else self.whole

    @classmethod
    def of(cls, matrix: np.ndarray, grid: Grid, form: Format, rounds: int) -> "RoundingTarget":
        """rounds: where the format has few bits."""
        return cls(matrix, grid, rounds if form.bits_per_weight <= DESCENDED_BITS else 0)

    def parts(self, numbers: int | None) -> Iterator["RoundingTarget"]:
        """The target cut into stretches of outputs with about so many numbers; None: uncut."""
        if numbers is None or self.matrix.size <= numbers:
            yield self
            return
        for part in scales.parts(self.matrix.shape[1], -(-self.matrix.size // numbers)):
            mask = None if self.grid.mask is None else self.grid.mask[:, part]
            grid = replace(self.grid, scale=self.grid.scale[:, part], mask=mask)
            yield replace(self, matrix=self.matrix[:, part], grid=grid, whole=self.unit)

    def beside(self, steps: int) -> "RoundingTarget":
        """The same with other scales: so many places away among those that can be stored."""
        grid = replace(self.grid, scale=scales.beside(self.grid.scale, self.unit, steps))
        return replace(self, grid=grid, whole=self.unit)

    @property
    def together(self) -> int:
        """Neighbouring columns among which those that are kept are chosen; 1 where none are."""
        return 1 if self.grid.patterns is None else int(self.grid.patterns.shape[1])


def grids_for(
    matrix: np.ndarray,
    second: np.ndarray,
    forms: Sequence[Scaled],
    *,
    keeps_sign: bool = False,
    mask: np.ndarray | None = None,
    powers: bool = False,
) -> dict[Format, Grid]:
    """Grids of weights (groups, R, d) in every format, by the importance that the diagonal of `second` gives.

    keeps_sign: not below 0, as no weight does. mask: what is not zero in formats that keep zeros, if not the weights
    tell. powers: whether scales are to be powers of two.
    """
    importance = importance_of(second)
    result: dict[Format, Grid] = {}
    for form in forms:
        if mask is None or not form.keeps_zeros:
            result[form] = form.grid(matrix, importance, keeps_sign=keeps_sign)
        else:
            pruned = form.grid(np.where(mask, matrix, np.float32(0)), importance, keeps_sign=keeps_sign)
            result[form] = replace(pruned, mask=mask, patterns=None)
    return {form: grid.with_powers(matrix, importance) for form, grid in result.items()} if powers else result


def round_all(
    targets: Sequence[RoundingTarget], second: np.ndarray | Factored, numbers: int | None = None
) -> list[Rounded]:
    """Codes and scales of all targets at once.

    second: E[x xᵀ] (groups, d, d), or its diagonal, for which GPTQ is nearest rounding. numbers: of a target, that are
    worked on at a time; outputs do not depend on each other.
    """
    if isinstance(second, np.ndarray) and second.ndim == 3:
        second = Factored.of(second, together=max(target.together for target in targets))
    pieces = [list(target.parts(numbers)) for target in targets]
    answers = [_round_together(piece, second) for piece in zip(*pieces, strict=True)]
    return [Rounded.joined(several) for several in zip(*answers, strict=True)]


def round_best(
    targets: Sequence[RoundingTarget], second: np.ndarray | Factored, numbers: int | None = None
) -> list[Rounded]:
    """`round_all`, for narrow rows with each of several scales, of which every row gets the one of least error.

    A scale was searched for rounding each number for itself, and is not the best one for what GPTQ does. Scales that
    are to be powers of two are far from each other, and stay as they are.
    """
    best = round_all(targets, second, numbers)
    if targets[0].matrix.shape[-1] > NARROW or targets[0].grid.powers:
        return best
    whole = second.second if isinstance(second, Factored) else second
    for steps in scales.NEARBY:
        others = round_all([target.beside(steps) for target in targets], second, numbers)
        each = zip(targets, best, others, strict=True)
        best = [
            known.better(other, target.matrix, whole, whole=target.grid.sequences is not None)
            for target, known, other in each
        ]
    return best


def _round_together(targets: Sequence[RoundingTarget], second: np.ndarray | Factored) -> list[Rounded]:
    result: dict[int, Rounded] = {}
    kinds = [
        (
            target.grid.group,
            target.together,
            -1 if target.grid.sequences is None else number,  # these go alone
            target.rounds if isinstance(second, Factored) else 0,
        )
        for number, target in enumerate(targets)
    ]
    for kind in sorted(set(kinds)):
        which = [i for i, other in enumerate(kinds) if other == kind]
        result |= zip(which, _round_alike([targets[i] for i in which], second, kind[-1]), strict=True)
    return [result[i] for i in range(len(targets))]


def _round_alike(targets: Sequence[RoundingTarget], second: np.ndarray | Factored, rounds: int) -> list[Rounded]:
    """The same for grids of one group, and of one kind of patterns or none.

    All targets stand below each other: they share the factor as further rows.
    """
    rows = _Rows.of(targets, _metric(second, rounds))
    rows.codes = (
        _round_columns(rows, second) if isinstance(second, Factored) else _round_each(rows, importance_of(second))
    )
    rows.product = moments.weighted(rows.codes, rows.second)
    rows.refit()
    for _ in range(rounds):
        if not _descend(rows):
            break
        rows.refit()
    return [Rounded(rows.codes[:, part].astype(grid.code_type), rows.scale[:, part, 0]) for grid, part in rows.parts]


def _metric(second: np.ndarray | Factored, rounds: int) -> np.ndarray:
    """Second moments that scales are fitted by; damped for coordinate descent, which divides by them."""
    if isinstance(second, Factored):
        return second.damped if rounds else second.second
    return second


@dataclass(eq=False)
class _Rows:
    """Targets below each other: matrix and codes (groups, k·R, d), scale (groups, k·R, 1), product: codes · second.

    mask: those of the grids, float32, where any has one, or from when columns are rounded by patterns.
    """

    targets: Sequence[RoundingTarget]
    matrix: np.ndarray
    scale: np.ndarray
    parts: list[tuple[Grid, slice]]
    group: int
    second: np.ndarray
    mask: np.ndarray | None
    patterns: np.ndarray | None
    powers: bool
    codes: np.ndarray = field(init=False)
    product: np.ndarray = field(init=False)

    @classmethod
    def of(cls, targets: Sequence[RoundingTarget], second: np.ndarray) -> "_Rows":
        count = targets[0].matrix.shape[1]
        matrix = np.concatenate([target.matrix for target in targets], axis=1).astype(np.float32)
        scale = np.concatenate([target.grid.scale for target in targets], axis=1)[..., None].astype(np.float32)
        parts = [(target.grid, slice(i * count, (i + 1) * count)) for i, target in enumerate(targets)]
        first = targets[0].grid
        return cls(targets, matrix, scale, parts, first.group, second, _masks(targets), first.patterns, first.powers)

    @cached_property
    def wanted(self) -> np.ndarray:
        """matrix · second."""
        distinct = {id(target.matrix): target.matrix for target in self.targets}
        products = {name: moments.weighted(matrix, self.second) for name, matrix in distinct.items()}
        return np.concatenate([products[id(target.matrix)] for target in self.targets], axis=1)

    def nearest(self, ratio: np.ndarray, metric: np.ndarray, array: np.ndarray | None) -> np.ndarray:
        """Codes nearest to weight / scale (groups, group, k·R), each target's by its own grid.

        array, of the same shape: 0 where the code is 0 whatever the weight.
        """
        codes = np.empty_like(ratio)
        for grid, part in self.parts:
            codes[:, :, part] = grid.nearest(ratio[:, :, part].swapaxes(1, 2), metric).swapaxes(1, 2)
        if array is not None:
            codes *= array
        return codes

    @property
    def sequences(self) -> ColumnRounding | None:
        """What rounds all outputs of a column together, of a single target."""
        return self.parts[0][0].sequences

    def costs(self, metric: np.ndarray) -> np.ndarray:
        """What a squared error of codes costs (d, groups · R), from what one of each column (groups, d) costs."""
        importance = np.repeat(metric.T, self.scale.shape[1], axis=1)
        return costs_of(importance, self.scale.reshape(-1))

    def refit(self) -> None:
        """The scales that fit the codes best in the layer's output, where they lower the error."""
        norm, inner = (self.product * self.codes).sum(-1), (self.product * self.matrix).sum(-1)
        usable, scale = (norm > 0) & (inner > 0), self.scale[..., 0]
        fitted = np.where(usable, inner / np.where(usable, norm, 1.0), scale)
        every = zip(self.targets, self.parts, strict=True)
        stored = [scales.rounded(fitted[:, part], target.unit) for target, (_, part) in every]
        for tried in scales.powers_beside(fitted) if self.powers else (np.concatenate(stored, axis=1),):
            gain = (tried - scale) * (2 * inner - (tried + scale) * norm)
            scale = np.where(gain > 0, tried, scale)
        self.scale = scale[..., None].astype(np.float32)


def _masks(targets: Sequence[RoundingTarget]) -> np.ndarray | None:
    """`mask` of all targets below each other; None where none has it."""
    if all(target.grid.mask is None for target in targets):
        return None
    every = [np.ones(t.matrix.shape, bool) if t.grid.mask is None else t.grid.mask for t in targets]
    return np.concatenate(every, axis=1).astype(np.float32)


def importance_of(second: np.ndarray) -> np.ndarray:
    """What a unit of error in each column costs (groups, 1, d), never quite 0."""
    diagonal = second if second.ndim == 2 else np.diagonal(second, axis1=1, axis2=2)
    return np.asarray((diagonal + 1e-6 * diagonal.mean() + 1e-30)[:, None, :], np.float32)


def _round_each(rows: _Rows, importance: np.ndarray) -> np.ndarray:
    """Nearest rounding, code by code."""
    if rows.sequences is not None:
        ratio = _flat(_columns(rows.matrix / rows.scale))
        return _grouped(rows.sequences.nearest(ratio, rows.costs(importance[:, 0])), len(rows.matrix)).swapaxes(1, 2)
    codes = np.empty_like(rows.matrix)
    for start in range(0, codes.shape[-1], rows.group):
        here = slice(start, start + rows.group)
        metric = importance[:, 0, here, None] * np.eye(rows.group, dtype=np.float32)
        ratio = rows.matrix[:, :, here] / rows.scale
        for grid, part in rows.parts:
            codes[:, part, here] = grid.nearest(ratio[:, part], metric)
    if rows.patterns is not None:
        rows.mask = largest(np.square(rows.matrix) * importance, rows.patterns).astype(np.float32)
    return codes if rows.mask is None else codes * rows.mask


def _round_columns(rows: _Rows, factored: Factored) -> np.ndarray:
    """Round column by column with GPTQ."""
    work, factor = factored.ordered(rows.matrix), factored.factor
    codes, mask = np.empty_like(work), None if rows.mask is None else factored.ordered(rows.mask)
    if rows.patterns is not None:
        mask = np.empty_like(work)
    for here, later in _stretches(work.shape[-1], BLOCK):
        allowed = None if mask is None else mask[:, :, here]
        codes[:, :, here], errors = _round_block(rows, work[:, :, here], factor[:, here, here], allowed)
        work[:, :, later] -= errors @ factor[:, here, later]
    if rows.patterns is not None:
        rows.mask = factored.restored((codes != 0).astype(np.float32))
    return factored.restored(codes)


def _round_block(
    rows: _Rows, matrix: np.ndarray, factor: np.ndarray, allowed: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Codes and errors e of some columns, whose errors are passed on among them."""
    work, scale, mask = _columns(matrix), rows.scale.swapaxes(1, 2), _columns_if(allowed)
    if rows.sequences is not None:
        own = np.diagonal(factor, axis1=1, axis2=2)
        coupling = factor / own[..., None]
        rounded = rows.sequences.rounded_in_turn(_flat(work / scale), None, rows.costs(1 / np.square(own)), coupling)
        codes, moves = (_grouped(each, len(work)) for each in rounded)
        return codes.swapaxes(1, 2), (-moves * scale / own[..., None]).swapaxes(1, 2)
    codes, errors = np.empty_like(work), np.empty_like(work)
    for stretch, rest in _stretches(work.shape[1], STRETCH):
        for j in range(stretch.start, stretch.stop, rows.group):
            here, later = slice(j, j + rows.group), slice(j + rows.group, stretch.stop)
            if mask is not None and rows.patterns is not None and j % rows.patterns.shape[1] == 0:
                four = slice(j, j + rows.patterns.shape[1])
                mask[:, four] = _cheapest(work[:, four], factor[:, four, four], rows.patterns)
            inverse = np.linalg.inv(factor[:, here, here])
            metric, free = inverse @ inverse.swapaxes(1, 2), None if mask is None else mask[:, here]
            codes[:, here] = rows.nearest(work[:, here] / scale, metric, free)
            errors[:, here] = inverse.swapaxes(1, 2) @ (work[:, here] - codes[:, here] * scale)
            _add(work[:, later], -factor[:, here, later], errors[:, here])
        work[:, rest] -= factor[:, stretch, rest].swapaxes(1, 2) @ errors[:, stretch]
    return codes.swapaxes(1, 2), errors.swapaxes(1, 2)


def _cheapest(columns: np.ndarray, factor: np.ndarray, patterns: np.ndarray) -> np.ndarray:
    """What to keep (groups, M, R) of M columns: by the pattern whose zeros cost least when all else makes up for them.

    factor (groups, M, M): of the inverse of the second moments of these and all later columns.
    """
    inverse = factor.swapaxes(1, 2) @ factor
    costs = []
    for pattern in patterns.astype(bool):
        gone = np.flatnonzero(~pattern)
        held = columns[:, gone]
        costs.append((held * (np.linalg.inv(inverse[:, gone[:, None], gone]) @ held)).sum(1))
    return np.asarray(patterns[np.argmin(costs, axis=0)].swapaxes(1, 2), np.float32)


def _stretches(width: int, size: int) -> Iterator[tuple[slice, slice]]:
    """Stretches of columns, each with the columns behind it."""
    for start in range(0, width, size):
        stop = min(start + size, width)
        yield slice(start, stop), slice(stop, None)


def _columns(matrix: np.ndarray) -> np.ndarray:
    """A copy (groups, d, R) with every column in one piece: what is done column by column is many times as fast."""
    return np.array(matrix.swapaxes(1, 2), order="C")  # of one output, np.ascontiguousarray would give a view


def _flat(columns: np.ndarray) -> np.ndarray:
    """Columns (groups, d, R) as (d, groups · R)."""
    return np.ascontiguousarray(columns.swapaxes(0, 1)).reshape(columns.shape[1], -1)


def _grouped(flat: np.ndarray, groups: int) -> np.ndarray:
    """The inverse of `_flat`."""
    return flat.reshape(len(flat), groups, -1).swapaxes(0, 1)


def _columns_if(matrix: np.ndarray | None) -> np.ndarray | None:
    return None if matrix is None else _columns(matrix)


def _activation_order(second: np.ndarray, group: int, alike: bool) -> np.ndarray:
    """Columns (groups, d), those of the largest second moments first, neighbours of a group together.

    alike: by what they are relative to the others of their group, in the mean over all groups.
    """
    diagonal = np.diagonal(second, axis1=1, axis2=2)
    if alike:
        share = diagonal / np.maximum(diagonal.sum(-1, keepdims=True), 1e-30)
        diagonal = np.broadcast_to(share.mean(0), diagonal.shape)
    first = np.argsort(-diagonal.reshape(len(diagonal), -1, group).sum(-1), axis=1, kind="stable")
    return np.asarray((first[..., None] * group + np.arange(group)).reshape(len(diagonal), -1))


def _add(columns: np.ndarray, by: np.ndarray, rows: np.ndarray) -> None:
    """columns (groups, d, R) += byᵀ rows; so few rows that a product of matrices would take several times as long."""
    for i in range(rows.shape[1]):
        columns += by[:, i, :, None] * rows[:, i, None]


def _descend(rows: _Rows) -> bool:
    """One pass over the columns, each (or each pair) set to its best codes; whether any changed."""
    changed = False
    for start in range(0, rows.codes.shape[-1], BLOCK):
        here = slice(start, start + BLOCK)
        before = rows.codes[:, :, here]
        result = _descend_block(rows, here)
        if not np.array_equal(result, before):
            rows.product += (result - before) @ rows.second[:, here]
            rows.codes[:, :, here] = result
            changed = True
    return changed


def _descend_block(rows: _Rows, part: slice) -> np.ndarray:
    """The best codes of some columns, one after the other."""
    second, codes, scale = rows.second[:, part, part], _columns(rows.codes[:, :, part]), rows.scale.swapaxes(1, 2)
    gradient = _columns(rows.product[:, :, part] * rows.scale - rows.wanted[:, :, part])
    if rows.sequences is not None:
        own = np.diagonal(second, axis1=1, axis2=2)
        away, coupling = -gradient / (own[..., None] * scale), -second / own[:, None, :]
        best, _ = rows.sequences.rounded_in_turn(_flat(away), _flat(codes), rows.costs(own), coupling)
        return _grouped(best, len(codes)).swapaxes(1, 2)
    mask = _columns_if(None if rows.mask is None else rows.mask[:, :, part])
    moves = np.empty_like(codes)
    for stretch, rest in _stretches(codes.shape[1], STRETCH):
        for j in range(stretch.start, stretch.stop, rows.group):
            here, later = slice(j, j + rows.group), slice(j + rows.group, stretch.stop)
            own, free = second[:, here, here], None if mask is None else mask[:, here]
            wanted = codes[:, here] - np.linalg.inv(own) @ gradient[:, here] / scale
            best = rows.nearest(wanted, own, free)
            moves[:, here] = (best - codes[:, here]) * scale
            _add(gradient[:, later], second[:, here, later], moves[:, here])
            codes[:, here] = best
        gradient[:, rest] += second[:, stretch, rest].swapaxes(1, 2) @ moves[:, stretch]
    return codes.swapaxes(1, 2)


# The order of a layer's columns in which the neighbours of a format are neighbours.
#
# A layer's matrix has its columns as the file has them: of a convolution all taps of an input, then those of the next.
# Formats whose neighbours are inputs, of one tap each, are solved with the columns tap by tap.


def is_alike(form: Format, layer: Layer) -> bool:
    """Whether a format needs the columns of all groups of a layer in one order, as its sequences go through all."""
    return form.by_column and layer.groups > 1


@dataclass(frozen=True, eq=False)
class ColumnOrder:
    """places (d,): of the columns, in their new order; None: as they are."""

    places: np.ndarray | None = None

    @classmethod
    def of(cls, form: Format | type[Format], layer: Layer) -> "ColumnOrder":
        """What a format needs of a layer."""
        if not form.along_inputs or layer.taps == 1:
            return cls()
        return cls(np.arange(layer.width).reshape(-1, layer.taps).T.reshape(-1))

    def rows(self, matrix: np.ndarray) -> np.ndarray:
        """Rows (…, d) in the new order."""
        return matrix if self.places is None else np.take(matrix, self.places, -1)

    def restored(self, rows: np.ndarray) -> np.ndarray:
        """The inverse of `rows`."""
        return rows if self.places is None else np.take(rows, np.argsort(self.places), -1)

    def moments(self, second: np.ndarray) -> np.ndarray:
        """Second moments (groups, d, d), or their diagonals (groups, d), in the new order."""
        if self.places is None or second.ndim == 2:
            return self.rows(second)
        return np.take(self.rows(second), self.places, 1)
