"""GPTQ: rounding a layer's weights column by column, each error passed on to the columns not yet rounded.

Frantar, Ashkboos, Hoefler, Alistarh 2022 (arXiv 2210.17323), algorithm 1: with U the upper Cholesky factor of H⁻¹,
e_j = (w_j − Q(w_j)) / U_jj, then W_{:,j:} −= e_j · U_{j,j:}, columns of large H_jj first. All groups of a layer are
solved together, so a depthwise layer is one batch of small problems.

Pairs of columns that share a code are rounded together, by the metric (U_JJ U_JJᵀ)⁻¹ (van Baalen et al. 2024, GPTVQ,
arXiv 2402.15319).

Coordinate descent can follow (Behdin et al. 2023, QuantEase, arXiv 2309.01885): with everything else held, the best
code of column j is Q(q_j − ((Ŵ − W) H)_j / (H_jj s)); the error never grows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ptqc import codebooks, grids
from ptqc.formats import Format
from ptqc.passes import moments

BLOCK = 64
DAMPING = 0.01  # of the mean diagonal


@dataclass(frozen=True, eq=False)
class Rounded:
    """codes (groups, R, d) int8 and scale (groups, R) float32."""

    codes: np.ndarray
    scale: np.ndarray

    @property
    def weight(self) -> np.ndarray:
        """scale · codes."""
        return np.asarray(self.codes * self.scale[..., None], np.float32)


def inverse_factor(second: np.ndarray, damping: float = DAMPING) -> np.ndarray:
    """U (groups, d, d) with UᵀU = (H + damping · mean diagonal)⁻¹, upper triangular; computed in float64."""
    damped = _damped(second.astype(np.float64), damping)
    # chol(inv(H)) = reversed inverse of the Cholesky factor of the reversed H, without forming inv(H).
    lower = np.linalg.cholesky(damped[:, ::-1, ::-1])
    return np.ascontiguousarray(_invert_lower(lower)[:, ::-1, ::-1], np.float32)


def _damped(second: np.ndarray, damping: float) -> np.ndarray:
    """second with a share of its mean diagonal added to the diagonal."""
    width = second.shape[-1]
    mean = np.trace(second, axis1=1, axis2=2) / width
    mean = np.where(mean > 0, mean, 1.0)
    return np.asarray(second + np.eye(width, dtype=second.dtype) * (damping * mean)[:, None, None], second.dtype)


def _invert_lower(lower: np.ndarray) -> np.ndarray:
    """Inverse of lower triangular matrices by halves, which is mostly matrix products."""
    width = lower.shape[-1]
    if width <= BLOCK:
        return np.asarray(np.linalg.inv(lower))
    half = width // 2
    first, second = _invert_lower(lower[:, :half, :half]), _invert_lower(lower[:, half:, half:])
    inverse = np.zeros_like(lower)
    inverse[:, :half, :half], inverse[:, half:, half:] = first, second
    inverse[:, half:, :half] = -second @ (lower[:, half:, :half] @ first)
    return inverse


@dataclass(frozen=True, eq=False)
class Grid:
    """Where the weights of one format may lie: `group` neighbours at a time. scale (groups, R)."""

    scale: np.ndarray
    group: int
    nearest: Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class Target:
    """What is rounded: weights (groups, R, d), and where they may lie."""

    matrix: np.ndarray
    grid: Grid


def grids_for(matrix: np.ndarray, second: np.ndarray, forms: Sequence[Format]) -> dict[Format, Grid]:
    """Where weights (groups, R, d) may lie in every format, by the importance that the diagonal of `second` gives."""
    importance = _importance(second)
    return {form: _grid(matrix, importance, form) for form in forms}


def solve(
    matrix: np.ndarray,
    second: np.ndarray,
    forms: Sequence[Format],
    *,
    rounds: int = 0,
    known: Mapping[Format, Grid] | None = None,
) -> dict[Format, Rounded]:
    """Codes and scales of weights (groups, R, d) in every format. known: what `grids_for` gives, where it is at hand.

    See `round_all` for the rest.
    """
    chosen = known or grids_for(matrix, second, forms)
    targets = [Target(matrix, chosen[form]) for form in forms]
    return dict(zip(forms, round_all(targets, second, rounds=rounds), strict=True))


def round_all(targets: Sequence[Target], second: np.ndarray, *, rounds: int = 0) -> list[Rounded]:
    """Codes and scales of all targets at once.

    second: E[x xᵀ] (groups, d, d), or its diagonal, for which GPTQ is nearest rounding. rounds: of coordinate descent
    behind it, at most.
    """
    found: dict[int, Rounded] = {}
    for group in sorted({target.grid.group for target in targets}):
        which = [i for i, target in enumerate(targets) if target.grid.group == group]
        found |= zip(which, _round_alike([targets[i] for i in which], second, rounds), strict=True)
    return [found[i] for i in range(len(targets))]


def _round_alike(targets: Sequence[Target], second: np.ndarray, rounds: int) -> list[Rounded]:
    """The same for grids of one group. All targets stand below each other: they share the factor as further rows."""
    rounds = rounds if second.ndim == 3 else 0
    rows = _Rows.of(targets, _damped(second, DAMPING) if rounds else second)
    rows.codes = _round_columns(rows, second) if second.ndim == 3 else _round_each(rows, _importance(second))
    rows.product = moments.weighted(rows.codes, rows.second)
    rows.refit()
    for _ in range(rounds):
        if not _descend(rows):
            break
        rows.refit()
    return [Rounded(rows.codes[:, part].astype(np.int8), rows.scale[:, part, 0]) for _, part in rows.parts]


@dataclass(eq=False)
class _Rows:
    """Targets below each other: matrix and codes (groups, k·R, d), scale (groups, k·R, 1), product: codes · second."""

    targets: Sequence[Target]
    matrix: np.ndarray
    scale: np.ndarray
    parts: list[tuple[Grid, slice]]
    group: int
    second: np.ndarray
    codes: np.ndarray = field(init=False)
    product: np.ndarray = field(init=False)

    @classmethod
    def of(cls, targets: Sequence[Target], second: np.ndarray) -> "_Rows":
        count = targets[0].matrix.shape[1]
        matrix = np.concatenate([target.matrix for target in targets], axis=1).astype(np.float32)
        scale = np.concatenate([target.grid.scale for target in targets], axis=1)[..., None].astype(np.float32)
        parts = [(target.grid, slice(i * count, (i + 1) * count)) for i, target in enumerate(targets)]
        return cls(targets, matrix, scale, parts, targets[0].grid.group, second)

    @cached_property
    def wanted(self) -> np.ndarray:
        """matrix · second."""
        distinct = {id(target.matrix): target.matrix for target in self.targets}
        products = {name: moments.weighted(matrix, self.second) for name, matrix in distinct.items()}
        return np.concatenate([products[id(target.matrix)] for target in self.targets], axis=1)

    def refit(self) -> None:
        """The scales that fit the codes best in the layer's output, where they lower the error."""
        norm, inner = (self.product * self.codes).sum(-1), (self.product * self.matrix).sum(-1)
        usable, scale = (norm > 0) & (inner > 0), self.scale[..., 0]
        fitted = np.where(usable, inner / np.where(usable, norm, 1.0), scale)
        fitted = grids.storable(fitted, np.abs(self.matrix).max(-1))
        gain = (fitted - scale) * (2 * inner - (fitted + scale) * norm)
        self.scale = np.where(gain > 0, fitted, scale)[..., None].astype(np.float32)


def _importance(second: np.ndarray) -> np.ndarray:
    """What a unit of error in each column costs (groups, 1, d), never quite 0."""
    diagonal = second if second.ndim == 2 else np.diagonal(second, axis1=1, axis2=2)
    return np.asarray((diagonal + 1e-6 * diagonal.mean() + 1e-30)[:, None, :], np.float32)


def _grid(matrix: np.ndarray, importance: np.ndarray, form: Format) -> Grid:
    if form.is_codebook:
        book, scale = codebooks.fit(matrix, importance, form)
        return Grid(scale, form.group, book.nearest)
    return Grid(grids.search_scale(matrix, importance, form), 1, lambda ratio, _: grids.nearest(ratio, form))


def _round_each(rows: _Rows, importance: np.ndarray) -> np.ndarray:
    """Nearest rounding, code by code."""
    codes = np.empty_like(rows.matrix)
    for start in range(0, codes.shape[-1], rows.group):
        here = slice(start, start + rows.group)
        metric = importance[:, 0, here, None] * np.eye(rows.group, dtype=np.float32)
        ratio = rows.matrix[:, :, here] / rows.scale
        for grid, part in rows.parts:
            codes[:, part, here] = grid.nearest(ratio[:, part], metric)
    return codes


def _round_columns(rows: _Rows, second: np.ndarray) -> np.ndarray:
    """GPTQ, code by code."""
    group, scale, width = rows.group, rows.scale, second.shape[-1]
    order = _activation_order(second, group)
    ordered = np.take_along_axis(np.take_along_axis(second, order[:, :, None], 1), order[:, None, :], 2)
    factor = inverse_factor(ordered)
    work = np.take_along_axis(rows.matrix, order[:, None, :], 2)
    codes = np.empty_like(work)
    for start in range(0, width, BLOCK):
        stop = min(start + BLOCK, width)
        errors = np.empty((*work.shape[:2], stop - start), np.float32)
        for j in range(start, stop, group):
            here, later = slice(j, j + group), slice(j + group, stop)
            inverse = np.linalg.inv(factor[:, here, here])
            metric, ratio = inverse @ inverse.swapaxes(1, 2), work[:, :, here] / scale
            for grid, part in rows.parts:
                codes[:, part, here] = grid.nearest(ratio[:, part], metric)
            residual = (work[:, :, here] - codes[:, :, here] * scale) @ inverse
            errors[:, :, j - start : j - start + group] = residual
            work[:, :, later] -= residual @ factor[:, here, later]
        work[:, :, stop:] -= errors @ factor[:, start:stop, stop:]
    return np.take_along_axis(codes, np.argsort(order, axis=1)[:, None, :], 2)


def _activation_order(second: np.ndarray, group: int) -> np.ndarray:
    """Columns (groups, d), those of the largest second moments first, neighbours of a group together."""
    diagonal = np.diagonal(second, axis1=1, axis2=2)
    first = np.argsort(-diagonal.reshape(len(diagonal), -1, group).sum(-1), axis=1, kind="stable")
    return np.asarray((first[..., None] * group + np.arange(group)).reshape(len(diagonal), -1))


def _descend(rows: _Rows) -> bool:
    """One pass over the columns, each (or each pair) set to its best codes; whether any changed."""
    second, scale, width, changed = rows.second, rows.scale, rows.second.shape[-1], False
    for start in range(0, width, BLOCK):
        stop = min(start + BLOCK, width)
        inside, block = second[:, start:stop, start:stop], rows.codes[:, :, start:stop]
        gradient, before = rows.product[:, :, start:stop] * scale - rows.wanted[:, :, start:stop], block.copy()
        for j in range(0, stop - start, rows.group):
            here, later = slice(j, j + rows.group), slice(j + rows.group, stop - start)
            own = inside[:, here, here]
            best = block[:, :, here] - gradient[:, :, here] @ np.linalg.inv(own) / scale
            for grid, part in rows.parts:
                block[:, part, here] = grid.nearest(best[:, part], own)
            gradient[:, :, later] += (block[:, :, here] - before[:, :, here]) * scale @ inside[:, here, later]
        if not np.array_equal(block, before):
            rows.product += (block - before) @ second[:, start:stop]
            changed = True
    return changed
