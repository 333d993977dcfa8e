"""The smallest file of a model, from counts of bytes alone: a bound that no file is below, and about its size."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
import onnx_ir as ir

from ptqc.codegen.onnxruntime.export import export
from ptqc.codegen.onnxruntime.size import stored
from ptqc.execution.onnxruntime import message, without_tensors
from ptqc.formats import UINT8, Integer, QuantParams, Scaled
from ptqc.formats.scales import storable
from ptqc.ir.external import field_bytes, is_in_files
from ptqc.ir.layers import Layer, Weight, find_layers, find_weights
from ptqc.ir.nodes import initial
from ptqc.ir.operators import Trait, named
from ptqc.ir.plan import Plan
from ptqc.ir.quantized_weight import QuantizedParameters, QuantizedWeight, with_tables
from ptqc.ir.recorded import remembered, source_of
from ptqc.ir.sites import find_kernels, find_sites, useful_sites
from ptqc.passes.allocate.lower import Lower
from ptqc.passes.allocate.problem import name_length
from ptqc.passes.quantize.phases import PlanWithParameters
from ptqc.passes.quantize.solve_weights import direct, formats_of, in_rows, suited

# Nodes of these may go: they become the saturation of a kernel, or move nothing.
MAY_GO = {*named(Trait.CLIPS, Trait.COPIES), "Constant"}
NAMED = 8
# Characters of a name in the file.
SHORT = 2
# Numbers of a weight from which on only the format of the fewest bits is tried.
LARGE = 2**16


@dataclass(frozen=True)
class Bound:
    """bytes: that every file has. parts: the largest of them, what and bytes."""

    bytes: int
    parts: tuple[tuple[str, int], ...]


def lower_bound(model: ir.Model, bits: Sequence[int], only: Sequence[str] = ()) -> Bound:
    """What the narrowest codes of all weights and the names of the operators take together.

    model: in normal form. bits: the widths tried. only: the families; empty: all that suit the model. Scales, biases,
    attributes, names and functions come on top. Equal weights count once.
    """
    parts: dict[str, int] = {}
    seen = set[bytes]()
    weights = find_weights(model, find_layers(model))
    forms = formats_of(bits, weights, only)
    for weight in weights:
        values = initial(model, weight.name)
        hashed = hashlib.sha256(str(values.shape).encode())
        hashed.update(np.ascontiguousarray(values).view(np.uint8).data)
        key = hashed.digest()
        if key not in seen:
            seen.add(key)
            parts[weight.name] = ceil(weight.size * _narrowest(weight, values, forms) / 8)
    stand_ins = remembered(model)
    operators = [node for node in model.graph if node.op_type not in MAY_GO and source_of(node, stand_ins) is None]
    parts["graph text"] = sum(
        field_bytes(field_bytes(len(node.op_type)) + 3 * (len(node.inputs) + len(node.outputs))) for node in operators
    )
    largest = sorted(parts.items(), key=lambda part: -part[1])[:NAMED]
    return Bound(sum(parts.values()), tuple(largest))


def estimated_size(model: ir.Model, bits: Sequence[int], only: Sequence[str] = ()) -> int:
    """Bytes of a file whose weights each have the format of the fewest bytes.

    It is written with numbers that are only rounded: its size is right, not what it computes. Which activations are
    codes shows only when losses are measured, so it is the larger one of two files: with all of them, and with none.
    Where the model does not fit into memory, weights are weighed one after the other instead.
    """
    layers = find_layers(model)
    kernels, weights = find_kernels(model, layers), find_weights(model, layers)
    if is_in_files(model):
        generator = np.random.default_rng(0)
        drawn = (_stand_in(weight, initial(model, weight.name), min(bits), generator) for weight in weights)
        text = without_tensors(message(model))
        text.graph.ClearField("value_info")
        return int(text.ByteSize()) + sum(stored(solution, (), SHORT).own for solution in drawn)
    forms = formats_of(bits, weights, only)
    numbers = {weight.name: _smallest(weight, initial(model, weight.name), forms) for weight in weights}
    biases = {layer.name: _bias(model, layer) for layer in layers}
    tuned = QuantizedParameters(with_tables(numbers, weights), biases)
    sites = useful_sites(find_sites(model, kernels), kernels, {layer.name for layer in layers})
    plan = Plan(tuple(layers), tuple(weights), tuple(kernels), tuple(sites), {}, {})
    plan = plan.with_formats({name: solution.form for name, solution in numbers.items()})
    # Of other parameters each, as equal constants are stored once.
    coded = replace(plan, activations={site.name: _any_codes(place) for place, site in enumerate(sites)})
    return max(_written(PlanWithParameters(model, each, tuned)) for each in (plan, coded))


def _written(numbered: PlanWithParameters) -> int:
    """Bytes of a plan's file, with names as long as every plan of the model gets them."""
    model, length = numbered.model, name_length(numbered.model, numbered.plan)
    return export(Lower().apply(numbered).output, model, length).size


def _any_codes(place: int) -> QuantParams:
    return QuantParams(UINT8, 1 + place / 2**16, place % 256)


def _smallest(weight: Weight, values: np.ndarray, tried: Sequence[Scaled]) -> QuantizedWeight:
    """The weight in the format that takes the fewest bytes, its numbers only rounded."""
    rows, forms = in_rows(weight, values), suited(weight, values, tried)
    narrowest = [min(family, key=lambda form: form.least_bits(rows)) for family in by_family(forms)]
    if weight.size >= LARGE and narrowest:  # what tables and scales take beside the codes decides nothing
        narrowest = [min(narrowest, key=lambda form: form.least_bits(rows))]
    result = list(direct(weight, values))
    if np.isfinite(values).all():
        result += [_rounded(form, values, weight.channel_axis) for form in narrowest]
    return min(result, key=lambda solution: stored(solution, (), SHORT).own)


def _rounded(form: Scaled, values: np.ndarray, axis: int) -> QuantizedWeight:
    """A weight as no data say, with scales as solvers choose them."""
    codes, scale = form.rounded(values, axis)
    return QuantizedWeight(form, codes, storable(scale, np.ones_like(scale)), axis)


def by_family(forms: Iterable[Scaled]) -> list[list[Scaled]]:
    """Formats of one family together."""
    result: dict[str, list[Scaled]] = {}
    for form in forms:
        result.setdefault(form.family, []).append(form)
    return list(result.values())


def _bias(model: ir.Model, layer: Layer) -> np.ndarray | None:
    """As it is; where correction will make one, any."""
    if layer.bias is not None:
        return initial(model, layer.bias).reshape(-1)
    return np.full(layer.channels, 1e-3, np.float32) if layer.takes_bias else None


def _narrowest(weight: Weight, values: np.ndarray, tried: Sequence[Scaled]) -> float:
    """Bits of one number at least, without scales and levels."""
    rows, solved = in_rows(weight, values), suited(weight, values, tried)
    exact = [solution.form.bits_per_weight for solution in direct(weight, values)]
    return min(exact + [form.least_bits(rows) for form in solved])


def _stand_in(weight: Weight, values: np.ndarray, bits: int, generator: np.random.Generator) -> QuantizedWeight:
    """Codes of the fewest bits; the exact form of what has few values."""
    narrow = min(direct(weight, values), key=lambda solution: solution.form.bits)
    if not (np.isfinite(values).all() and narrow.form.is_plain):
        return narrow
    form = Integer(bits)
    codes = np.asarray(form.code_of(generator.integers(0, 2**bits, values.shape, np.int16)), np.int8)
    scale = generator.uniform(0.5, 1, values.shape[weight.channel_axis] if values.ndim else 1)
    return QuantizedWeight(form, codes, storable(scale, np.ones_like(scale)), weight.channel_axis)
