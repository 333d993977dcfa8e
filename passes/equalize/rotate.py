"""Channels mixed by rotations that the weights before and behind them take back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.ir.channels import ChannelTies, Factor, Role, turns
from ptqc.ir.nodes import constant, initial, nodes_of, set_constant
from ptqc.notes import Note
from ptqc.passes.base import Effect, Probed, Result

# Rotations that spread what single channels hold over all of them.
#
# Q = diag(±1) · H / √n with H the Hadamard matrix of Sylvester: every channel of x Q is a sum of all channels of x with
# factors of ±1/√n. Where n is no power of two, Q has blocks of the largest one that divides it.
# A norm that subtracts the mean asks for a Q that keeps it: H · diag(±1) · H / n does, where the first sign is 1, since
# H turns the vector of ones into a multiple of the first unit vector and back.


def rotation(size: int, seed: int = 0, keeps_mean: bool = False) -> np.ndarray:
    """An orthogonal matrix (size, size), in float64."""
    block = size & -size
    whole, rng = np.zeros((size, size)), np.random.default_rng(seed)
    for start in range(0, size, block):
        signs = rng.choice([-1.0, 1.0], block)
        matrix = _sylvester(block)
        if keeps_mean:
            signs[0] = 1.0
            turned = matrix @ (signs[:, None] * matrix) / block
        else:
            turned = signs[:, None] * matrix / np.sqrt(block)
        whole[start : start + block, start : start + block] = turned
    return whole


def _sylvester(size: int) -> np.ndarray:
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


FEWEST = 4


@dataclass(frozen=True, eq=False)
class Rotate:
    """Spread what single channels hold over all that may be mixed: the residual stream, heads of values.

    ties: of the model, by `ptqc.ir.rotation_rules`. classes: those to rotate, see `rotatable`. seed: of the signs.
    """

    ties: ChannelTies
    classes: tuple[int, ...]
    seed: int = 0
    name: ClassVar[str] = "rotate"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, probed: Probed) -> Result[Probed]:
        """Weights, biases and tables are changed in place; one note for each rotated class."""
        centred = _centred(probed.model, self.ties)
        matrices = dict[int, tuple[np.ndarray, np.ndarray]]()
        for number in self.classes:
            members = np.flatnonzero(self.ties.classes == number)
            matrices[number] = members, rotation(len(members), self.seed, bool(centred[members].any()))
        for name, role in self.ties.constants.items():
            before = initial(probed.model, name) if role.factors else None
            if before is not None and (after := rotated(before, role, matrices)) is not None:
                set_constant(probed.model, name, after)
        return probed.rewritten([Note(self.name, "", _message(members)) for members, _ in matrices.values()])


def _message(members: np.ndarray) -> str:
    return f"{len(members)} channels are mixed in blocks of {len(members) & -len(members)}"


def rotatable(ties: ChannelTies, least: int = FEWEST) -> tuple[int, ...]:
    """Classes with channels enough to be mixed in blocks of so many or more."""
    counts = np.bincount(ties.classes[ties.classes >= 0]) if (ties.classes >= 0).any() else np.empty(0, np.int64)
    return tuple(np.flatnonzero((counts & -counts) >= least).tolist())


def _centred(model: ir.Model, ties: ChannelTies) -> np.ndarray:
    """Which sets a norm reads that subtracts the mean (sets,)."""
    result = np.zeros(len(ties.classes), np.bool_)
    for node in nodes_of(model, "LayerNormalization"):
        name = str(node.inputs[0].name)  # type: ignore[union-attr]
        if name in ties.tensors:
            result[ties.tensors[name]] = True
    return result


def rotated(array: np.ndarray, role: Role, matrices: Mapping[int, tuple[np.ndarray, np.ndarray]]) -> np.ndarray | None:
    """A constant as it has to be for rotated channels, computed in float64; None where it stays.

    matrices: of each class its sets, in order, and Q: channel j becomes Σ_i Q_ij channel i, as do the rows that read
    them, since Q is orthogonal.
    """
    view, is_changed = array.astype(np.float64).reshape(role.view), False
    for factor in role.factors:
        for members, matrix in matrices.values():
            places = places_of(factor, members)
            if places.size:
                view, is_changed = _mixed(view, factor, places, matrix), True
    return np.ascontiguousarray(view.reshape(array.shape), array.dtype) if is_changed else None


def places_of(factor: Factor, members: np.ndarray) -> np.ndarray:
    """Where the sets lie in an axis (times, members): the k-th place of each in row k."""
    where = np.flatnonzero(np.isin(factor.numbers, members))
    if not where.size:
        return np.empty((0, len(members)), np.int64)
    result = factor.numbers[where]
    order = np.lexsort((np.searchsorted(members, result), turns(result)))
    return where[order].reshape(-1, len(members))


def _mixed(view: np.ndarray, factor: Factor, places: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    rest = [axis for axis in range(view.ndim) if axis not in factor.axes]
    front = view.transpose(*factor.axes, *rest)
    flat = front.reshape(len(factor.numbers), -1).copy()
    for row in places:
        flat[row] = matrix.T @ flat[row]
    return flat.reshape(front.shape).transpose(np.argsort([*factor.axes, *rest]))


def unit_gains(model: ir.Model, ties: ChannelTies) -> np.ndarray:
    """Factors (sets,) with which `ScaleChannels` makes the gains of norms one, where what reads them allows it.

    ties: by `ptqc.ir.scale_rules`.
    """
    factors = np.ones(len(ties.classes))
    for node in nodes_of(model, "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization", "Mul"):
        for value in node.inputs if node.op_type == "Mul" else node.inputs[1:2]:
            role, gain = ties.constants.get("" if value is None else str(value.name)), constant(value)
            if role is None or gain is None or not role.factors or not (gain > 0).all():
                continue
            result, *read = role.factors
            if not ties.fixed[result.numbers].any() and all(ties.fixed[x.numbers].all() for x in read):
                factors[result.numbers] = 1 / gain.ravel().astype(np.float64)
    return factors
