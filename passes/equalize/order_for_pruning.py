"""Channels ordered so that pruning two of each four neighbouring inputs loses less.

A layer computes the same in any order of its input channels, if what makes them has that order, too; but which four are
neighbours decides what pruning keeps. The order that keeps the most energy is searched by regrouping two fours at a
time (channel permutation: Pool and Yu 2021, "Channel Permutations for N:M Sparsity"). All layers that read channels
decide together; channels that a residual sum ties move as one. Channels keep their order where another one would part
a table from the product that has its numbers.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import numpy as np
import onnx_ir as ir

from ptqc.errors import PassError
from ptqc.execution.shapes import observed_shapes
from ptqc.ir.channel_rules import ORDERS
from ptqc.ir.channels import ChannelTies, find_ties
from ptqc.ir.layers import Layer, find_layers, find_weights
from ptqc.ir.nodes import initial
from ptqc.notes import Level, Note
from ptqc.options import CompileOptions
from ptqc.passes.equalize.equalize_channels import constants_digest, mean_squares
from ptqc.passes.equalize.reorder_channels import ReorderChannels
from ptqc.passes.quantize.prepare import PROBES, CanonicalModel
from ptqc.passes.runner import run_rewrites
from ptqc.utils.progress import Progress

STEP = "order-for-pruning"
FOUR = 4
OBSERVED = 32  # samples that show how strong channels are
# Rows of weights that decide, of more an even share; pairs of fours that are regrouped at most.
ROWS, PAIRS = 1024, 4000
# Share of the lost energy that an order has to save.
LEAST_GAIN = 0.01
# Of eight channels: all pairs, all ways to take four, and the pairs within those.
_NUMBER = {pair: number for number, pair in enumerate(combinations(range(2 * FOUR), 2))}
_PAIRS = np.array(list(_NUMBER))
_FOURS = np.array(list(combinations(range(2 * FOUR), FOUR)))
_WITHIN = np.array([[_NUMBER[pair] for pair in combinations(four, 2)] for four in _FOURS.tolist()])


def ordered_for_pruning(prepared: CanonicalModel, options: CompileOptions, progress: Progress) -> CanonicalModel:
    """Reorder channels where weights are pruned to 2:4 and another order keeps more of their energy.

    A note says what is gained, or why the order stays.
    """
    if options.sparsity != "2:4":
        return prepared
    with progress.stage("order channels for pruning"):
        ties = find_ties(prepared.model, observed_shapes(prepared.model, prepared.samples[0]), ORDERS)
        power = mean_squares(prepared.model, ties, prepared.tuning.some(OBSERVED))
        places, whole, before, after = np.arange(len(ties.classes)), 0.0, 0.0, 0.0
        random = np.random.default_rng(options.seed)
        for columns, energy in _energies(prepared.model, ties, power):
            order = best_order(energy, random)
            places[columns] = columns[order]
            whole += energy.sum()
            before, after = before + lost_energy(energy), after + lost_energy(energy[:, order])
    if not after <= (1 - LEAST_GAIN) * before or not before:
        return prepared
    model = prepared.model.clone()
    try:
        notes = run_rewrites(model, (ReorderChannels(ties, places),), [prepared.samples[i] for i in range(PROBES)])
    except PassError as error:  # sums that float32 does not bear in another order
        return replace(prepared, notes=(*prepared.notes, Note(STEP, "", f"undone: {error}", Level.SKIPPED)))
    gain = f"pruning to 2:4 takes {after / whole:.1%} of the energy of the weights, {before / whole:.1%} as they were"
    all_notes = (*prepared.notes, *notes, Note(STEP, "", gain))
    return replace(prepared, model=model, equalized=constants_digest(model), notes=all_notes)


def _energies(model: ir.Model, ties: ChannelTies, power: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Of each class that layers read whole: its sets in their order, and the energy of the weights (rows, sets).

    Each layer counts as much as the others, whatever the size of its outputs.
    """
    readers: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
    staying = {-1, *_parting(model, ties)}
    for layer in find_layers(model):
        sets = _input_sets(ties, layer)
        if sets is None or len(np.unique(ties.classes[sets])) > 1 or ties.classes[sets[0]] in staying:
            continue
        weights = np.moveaxis(initial(model, layer.weight), _input_axis(layer), -1).reshape(-1, len(sets))
        energy = np.square(weights, dtype=np.float64) * power[sets]
        readers.setdefault(int(ties.classes[sets[0]]), []).append((sets, energy / (energy.sum() or 1.0)))
    for several in readers.values():
        columns = several[0][0]
        if len(columns) > FOUR and len(columns) % FOUR == 0 and all(np.array_equal(x, columns) for x, _ in several):
            rows = np.concatenate([energy for _, energy in several])
            yield columns, rows[:: max(1, len(rows) // ROWS)]


def _parting(model: ir.Model, ties: ChannelTies) -> set[int]:
    """The classes in whose new order a table and the product with its numbers would be two constants."""
    result = set[int]()
    for weight in find_weights(model, find_layers(model)):
        if weight.table is None:
            continue
        layer = weight.layers[0]
        for axis, its_axis in enumerate((layer.channel_axis, _input_axis(layer))):
            both = _sets_along(ties, weight.table, (axis,)), _sets_along(ties, weight.name, (its_axis,))
            moved = [sets for sets in both if sets is not None]
            if moved and not (len(moved) == len(both) and np.array_equal(moved[0], moved[-1])):
                result.update(ties.classes[np.concatenate(moved)].tolist())
    return result


def _sets_along(ties: ChannelTies, constant: str, axes: tuple[int, ...]) -> np.ndarray | None:
    """The sets of a constant's channels along axes; None where they stay."""
    role = ties.constants.get(constant)
    return None if role is None else next((f.numbers for f in role.factors if f.axes == axes), None)


def _input_axis(layer: Layer) -> int:
    return 1 if layer.is_convolution else 1 - layer.channel_axis


def _input_sets(ties: ChannelTies, layer: Layer) -> np.ndarray | None:
    """The sets of a layer's input channels, each one once; None where they cannot all change places."""
    role = ties.constants.get(layer.weight)
    if role is None or layer.groups > 1 or not (layer.is_convolution or role.view == layer.shape):
        return None
    axes = (0, 2) if layer.is_convolution else (_input_axis(layer),)  # of a convolution, groups come first
    sets = _sets_along(ties, layer.weight, axes)
    return None if sets is None or len(np.unique(sets)) < len(sets) else sets


def lost_energy(energy: np.ndarray) -> float:
    """What the smaller two of each four neighbours have of the energy (rows, channels)."""
    fours = energy.reshape(len(energy), -1, FOUR)
    return float(np.partition(fours, FOUR // 2, axis=-1)[..., : FOUR // 2].sum())


def best_order(energy: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Find an order of channels such that regrouping any two fours keeps no more energy.

    energy: (rows, channels), channels a multiple of four. Ends after PAIRS pairs of fours at the latest.
    """
    count = energy.shape[1] // FOUR
    fours = np.arange(energy.shape[1]).reshape(count, FOUR)
    pairs, tried, is_changed = list(combinations(range(count), 2)), 0, True
    while is_changed and tried < PAIRS:
        is_changed = False
        for place in random.permutation(len(pairs))[: PAIRS - tried]:
            one, other = pairs[place]
            eight = np.concatenate([fours[one], fours[other]])
            remaining = _remaining_energy(energy[:, eight])
            both = remaining + remaining[::-1]  # the last way to take four takes what the first leaves
            best = int(both.argmax())
            if both[best] > both[0] * (1 + 1e-9):
                fours[one], fours[other] = eight[_FOURS[best]], eight[_FOURS[len(_FOURS) - 1 - best]]
                is_changed = True
        tried += len(pairs)
    return fours.ravel()


def _remaining_energy(energy: np.ndarray) -> np.ndarray:
    """The energy of the larger two, of each way to take four of eight channels: energy (rows, 8) -> (ways,)."""
    sums = energy[:, _PAIRS].sum(-1).T
    return np.asarray(sums[_WITHIN].max(1).sum(-1))
