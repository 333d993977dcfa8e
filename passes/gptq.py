"""GPTQ: rounding a layer's weights column by column, each error passed on to the columns not yet rounded.

Frantar, Ashkboos, Hoefler, Alistarh 2022 (arXiv 2210.17323), algorithm 1: with U the upper Cholesky factor of H⁻¹,
e_j = (w_j − Q(w_j)) / U_jj, then W_{:,j:} −= e_j · U_{j,j:}. All groups of a layer are solved together, so a depthwise
layer is one batch of small problems.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ptqc import grids
from ptqc.formats import Format
from ptqc.passes import moments

BLOCK = 128
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
    second = second.astype(np.float64)
    width = second.shape[-1]
    mean = np.trace(second, axis1=1, axis2=2) / width
    mean = np.where(mean > 0, mean, 1.0)
    damped = second + np.eye(width) * (damping * mean)[:, None, None]
    # chol(inv(H)) = reversed inverse of the Cholesky factor of the reversed H, without forming inv(H).
    lower = np.linalg.cholesky(damped[:, ::-1, ::-1])
    return np.ascontiguousarray(_invert_lower(lower)[:, ::-1, ::-1], np.float32)


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


def solve(matrix: np.ndarray, second: np.ndarray, forms: Sequence[Format]) -> Mapping[Format, Rounded]:
    """Codes and scales for every format at once.

    matrix: weights (groups, R, d). second: E[x xᵀ] (groups, d, d), or its diagonal, for which GPTQ is nearest rounding.
    """
    diagonal = second if second.ndim == 2 else np.diagonal(second, axis1=1, axis2=2)
    importance = (diagonal + 1e-6 * diagonal.mean() + 1e-30)[:, None, :].astype(np.float32)
    scales = {form: grids.search_scale(matrix, importance, form) for form in forms}
    if second.ndim == 2:
        codes = {form: grids.nearest(matrix / scales[form][..., None], form) for form in forms}
    else:
        codes = _round_columns(matrix, inverse_factor(second), forms, scales)
    return {form: _refit(matrix, codes[form], scales[form], second) for form in forms}


def _round_columns(
    matrix: np.ndarray, factor: np.ndarray, forms: Sequence[Format], scales: Mapping[Format, np.ndarray]
) -> dict[Format, np.ndarray]:
    """The formats stand as further rows: they share the factor, and rows do not interact."""
    rows = matrix.shape[1]
    work = np.concatenate([matrix] * len(forms), axis=1).astype(np.float32)
    scale = np.concatenate([scales[form] for form in forms], axis=1)
    codes = np.empty_like(work)
    parts = [(form, slice(i * rows, (i + 1) * rows)) for i, form in enumerate(forms)]
    width = work.shape[-1]
    for start in range(0, width, BLOCK):
        stop = min(start + BLOCK, width)
        errors = np.empty((*work.shape[:2], stop - start), np.float32)
        for j in range(start, stop):
            column = work[:, :, j]
            ratio = column / scale
            for form, part in parts:
                codes[:, part, j] = grids.nearest(ratio[:, part], form)
            residual = (column - codes[:, :, j] * scale) / factor[:, j, j][:, None]
            errors[:, :, j - start] = residual
            work[:, :, j:stop] -= residual[:, :, None] * factor[:, None, j, j:stop]
        if stop < width:
            work[:, :, stop:] -= errors @ factor[:, start:stop, stop:]
    return {form: codes[:, part] for form, part in parts}


def _refit(matrix: np.ndarray, codes: np.ndarray, scale: np.ndarray, second: np.ndarray) -> Rounded:
    """The scale that fits the codes best in the layer's output, where it lowers the error."""
    weighted = codes * second[:, None, :] if second.ndim == 2 else codes @ second
    norm = (weighted * codes).sum(-1)
    inner = (weighted * matrix).sum(-1)
    usable = (norm > 0) & (inner > 0)
    fitted = np.where(usable, inner / np.where(usable, norm, 1.0), scale)
    fitted = grids.storable(fitted, np.abs(matrix).max(-1))
    before = moments.error(matrix - codes * scale[..., None], second)
    after = moments.error(matrix - codes * fitted[..., None], second)
    return Rounded(codes.astype(np.int8), np.where(after < before, fitted, scale).astype(np.float32))
