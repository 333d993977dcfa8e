"""One layer of a plan solved again on the inputs that it will really see, with its bias corrected.

With x̂ what the already quantized predecessors give and y = Wx the float output, the layer minimizes
E‖y − Ŵx̂ − b̂‖². Its least-squares target is W* = W + (C − W H)(H + λ)⁻¹ with H = cov(x̂), C = cov(y, x̂) (Li et al.
2025, GPTAQ, arXiv 2504.02692, rounds towards the same); GPTQ rounds W*, or a point between W and it, against H, and the
bias makes the mean exact (`bias_correction.py`). Of a layer whose bias is not corrected, both are taken about zero, so
that its weights answer for the mean too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ptqc.execution.tensors import Compressed
from ptqc.formats import Scaled, scales
from ptqc.formats.levels import DEAD
from ptqc.ir.layers import Layer
from ptqc.ir.quantized_weight import QuantizedWeight
from ptqc.passes.quantize import gptq, moments
from ptqc.passes.quantize.gptq import ColumnOrder
from ptqc.passes.quantize.moments import ColumnSample, Joined, Moments
from ptqc.passes.reconstruct.bias_correction import corrected_bias, mean_output
from ptqc.utils import store

# Added to the diagonal of the second moments, as a share of its mean.
DAMPING = 0.02
# Of coordinate descent behind GPTQ.
ROUNDS = 4


@dataclass
class LayerInputs:
    """What layers of one reading see: columns x (groups, d, n) in pieces, and the moments of those that are fitted to.

    They stay in the codes that the walks hold them in, as those of a depthwise layer take gigabytes in float32.
    columns: which they are. split: how many pieces are fitted to; the rest judges. finite: which columns of each piece
    count: where both walks are finite.
    """

    columns: ColumnSample
    x: list[Joined]
    split: int
    finite: list[np.ndarray | slice] = field(default_factory=list)

    def leave_out(self, y: Sequence[Joined]) -> None:
        """Let only those columns count where what is seen and y, of a layer that sees it, are finite."""
        if not self.finite:
            self.finite = [_finite_columns(*pieces) for pieces in zip(self.x, y, strict=True)]

    @cached_property
    def moments(self) -> Moments:
        """Of the pieces that are fitted to."""
        result = Moments.empty(self.columns.layer.groups, self.columns.layer.width)
        for x, finite in zip(self.x[: self.split], self.finite, strict=False):
            result.add(np.asarray(x)[..., finite])
        return result


def _finite_columns(*pieces: Joined) -> np.ndarray | slice:
    """Where all pieces are finite; what is held in codes is."""
    uncertain = [piece for piece in pieces if not all(isinstance(part, Compressed) for part in piece.parts)]
    if all(np.isfinite(np.asarray(piece)).all() for piece in uncertain):
        return slice(None)
    return np.asarray(np.logical_and.reduce([np.isfinite(np.asarray(piece)).all((0, 1)) for piece in uncertain]))


@dataclass
class LayerProblem:
    """One layer: what it sees, and y (groups, R, n) at the same columns as the float model has it, in the same pieces.

    powers: whether scales are to be powers of two. numbers: of the weight, that are worked on together; None: all.
    reach: of a corrected bias; one beyond it takes bytes that the plan does not have.
    """

    layer: Layer
    weight: np.ndarray
    bias: np.ndarray
    seen: LayerInputs
    y: list[Joined]
    powers: bool = False
    numbers: int | None = None
    reach: float = np.inf

    def __post_init__(self) -> None:
        self.seen.leave_out(self.y)
        self.split, self.moments = self.seen.split, self.seen.moments
        self.second = moments.shrunk(self.moments.second(self.layer.is_corrected), self.moments.count)
        fitted = zip(self.y[: self.split], self.seen.finite, strict=False)
        total = sum(np.asarray(y)[..., finite].sum(-1, dtype=np.float64) for y, finite in fitted)
        self.mean_y = np.asarray(total / max(self.moments.count, 1), np.float32)

    def _columns(self, which: slice) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The real values of some pieces, one after the other."""
        for x, y, finite in zip(self.seen.x[which], self.y[which], self.seen.finite[which], strict=True):
            yield np.asarray(x)[..., finite], np.asarray(y)[..., finite]

    def rounded(self, form: Scaled, strength: float, coarser: int = 0) -> QuantizedWeight:
        """GPTQ on the seen inputs of what the layer aims at; of W where the layer is too wide for W*.

        coarser: by how many places among those that can be stored scales are to be larger.
        """
        order = ColumnOrder.of(form, self.layer)
        whole = order.moments(self.second)
        alike = gptq.is_alike(form, self.layer)
        second = gptq.Factored.of(whole, DAMPING, form.together, alike=alike) if whole.ndim == 3 else whole
        matrix = self.target(second, strength, order) if isinstance(second, gptq.Factored) else self.weight
        if self.layer.keeps_sign:
            matrix = np.maximum(matrix, 0)
        matrix = order.rows(matrix)
        mask, keeps_sign = form.mask(order.rows(self.weight)), self.layer.keeps_sign
        grids = gptq.grids_for(matrix, whole, [form], keeps_sign=keeps_sign, mask=mask, powers=self.powers)
        target = gptq.RoundingTarget.of(matrix, grids[form], form, ROUNDS)
        target = target.beside(coarser) if coarser else target
        (answer,) = gptq.round_best([target], second, self.numbers)
        codes = np.ascontiguousarray(self.layer.tensor(order.restored(answer.codes)))
        codes = codes if self.numbers is None else store.spool(codes)
        return QuantizedWeight(form, codes, answer.scale.reshape(-1), self.layer.channel_axis)

    def target(self, second: gptq.Factored, strength: float, order: ColumnOrder) -> np.ndarray:
        """W + strength · (W* − W), with W* the least-squares weight on the seen inputs, damped towards W.

        Outputs that are never active keep W: what else W* has is noise, and would take as many bits as what is active.
        order: that `second` has its columns in.
        """
        if self.numbers is None or self.weight.size <= self.numbers:
            return self._target(slice(None), second, strength, order)
        target = np.empty(self.weight.shape, np.float32)
        for part in scales.parts(self.weight.shape[1], -(-target.size // self.numbers)):
            target[:, part] = self._target(part, second, strength, order)
        return target

    def _target(self, part: slice, second: gptq.Factored, strength: float, order: ColumnOrder) -> np.ndarray:
        """Some outputs of the target."""
        mean_x, mean_y, weight = self.moments.mean, self.mean_y[:, part], self.weight[:, part]
        # Both about their means: of x alone, rounded sums times the mean of y cost mobilenetv2 a sixth of its error.
        cross = sum(
            (y[:, part] - mean_y[..., None]) @ (x - mean_x[..., None]).transpose(0, 2, 1)
            for x, y in self._columns(slice(self.split))
        ) / np.float32(max(self.moments.count, 1))
        residual = cross - weight @ self.moments.second()
        if not self.layer.is_corrected:
            missing = mean_y - self.bias.reshape(len(weight), -1)[:, part] - mean_output(weight, self.moments.mean)
            residual += missing[..., None] * mean_x[:, None, :]
        result = order.restored(second.solve(order.rows(residual)))
        is_live = np.abs(weight).max(-1, keepdims=True) > DEAD * np.abs(self.weight).max()
        return np.asarray(weight + strength * np.where(is_live, result, 0), np.float32)

    def judged(self, solution: QuantizedWeight) -> list[tuple[float, QuantizedWeight, np.ndarray]]:
        """Error on the held-back columns, solution and bias, for every bias: E‖y − Ŵx̂ − b̂‖²."""
        matrix, biases = self.layer.matrix(solution.weight), self._biases(solution)
        square, total, count = 0.0, np.zeros(matrix.shape[:2]), 0
        for x, y in self._columns(slice(self.split, None)):
            residual = y - matrix @ x - biases[0].reshape(*matrix.shape[:2], 1)
            square += float((residual[..., None, :] @ residual[..., None]).sum(dtype=np.float64))
            total += residual.sum(-1)
            count += residual.shape[-1]
        moves = [(bias - biases[0]).reshape(total.shape).astype(np.float64) for bias in biases]
        errors = [float(square - 2 * (move * total).sum() + count * (move * move).sum()) for move in moves]
        return [(error, solution, bias) for error, bias in zip(errors, biases, strict=True)]

    def _biases(self, solution: QuantizedWeight) -> list[np.ndarray]:
        """The bias that makes the mean of every channel exact on the tuning columns, and the layer's own.

        Of no columns there is no mean.
        """
        if not self.layer.is_corrected or not self.moments.count:
            return [self.bias]
        exact = corrected_bias(self.layer.matrix(solution.weight), self.moments.mean, self.mean_y)
        return [np.clip(exact, -self.reach, self.reach), self.bias]
