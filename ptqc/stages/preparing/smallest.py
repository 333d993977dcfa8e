"""The smallest file of a model, from counts of bytes alone: a bound that no file is below, and about its size."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import onnx_ir as ir

from ptqc.codegen.onnxruntime.export import export
from ptqc.codegen.onnxruntime.size import stored
from ptqc.execute.skeleton import message, without_tensors
from ptqc.formats import Integer
from ptqc.formats.scales import storable
from ptqc.graph.external import is_in_files
from ptqc.graph.layers import Weight, find_layers, find_weights
from ptqc.graph.model_file import field_bytes
from ptqc.graph.nodes import constant, initial
from ptqc.graph.recorded import remembered, source_of
from ptqc.graph.sites import find_kernels, find_sites
from ptqc.operators import Trait, named
from ptqc.passes.decide.phases import Numbered
from ptqc.passes.decide.solve_weights import direct, formats_of, in_rows, suited
from ptqc.passes.lower import Lower
from ptqc.plan import Plan
from ptqc.solutions import Solution, TunedNumbers, with_tables

# Nodes of these may go: they become the saturation of a kernel, or move nothing.
MAY_GO = {*named(Trait.CLIPS, Trait.COPIES), "Constant"}
NAMED = 8
# Characters of a name in the file.
SHORT = 2


@dataclass(frozen=True)
class Bound:
    """bytes: that every file has. parts: the largest of them, what and bytes."""

    bytes: int
    parts: tuple[tuple[str, int], ...]


def lower_bound(model: ir.Model, bits: Sequence[int]) -> Bound:
    """What the narrowest codes of all weights and the names of the operators take together.

    model: in normal form. bits: the widths tried. Scales, biases, attributes, names and functions come on top. Equal
    weights count once.
    """
    parts: dict[str, int] = {}
    seen = set[bytes]()
    for weight in find_weights(model, find_layers(model)):
        values = initial(model, weight.name)
        hashed = hashlib.sha256(str(values.shape).encode())
        hashed.update(np.ascontiguousarray(values).view(np.uint8).data)
        key = hashed.digest()
        if key not in seen:
            seen.add(key)
            parts[weight.name] = ceil(weight.size * _narrowest(weight, values, bits) / 8)
    stand_ins = remembered(model)
    kept = [node for node in model.graph if node.op_type not in MAY_GO and source_of(node, stand_ins) is None]
    parts["graph text"] = sum(
        field_bytes(field_bytes(len(node.op_type)) + 3 * (len(node.inputs) + len(node.outputs))) for node in kept
    )
    largest = sorted(parts.items(), key=lambda part: -part[1])[:NAMED]
    return Bound(sum(parts.values()), tuple(largest))


def estimated_size(model: ir.Model, bits: Sequence[int]) -> int:
    """Bytes of a file whose weights have the fewest bits on uniform grids, and whose activations are float.

    It is written with codes drawn at random: only its size is right. Where the model does not fit into memory, weights
    are weighed one after the other instead.
    """
    layers = find_layers(model)
    kernels, weights = find_kernels(model, layers), find_weights(model, layers)
    generator = np.random.default_rng(0)
    if is_in_files(model):
        drawn = (_stand_in(weight, initial(model, weight.name), min(bits), generator) for weight in weights)
        text = without_tensors(message(model))
        text.graph.ClearField("value_info")
        return int(text.ByteSize()) + sum(stored(solution, (), SHORT).own for solution in drawn)
    numbers = {weight.name: _stand_in(weight, initial(model, weight.name), min(bits), generator) for weight in weights}
    plan = Plan(tuple(layers), tuple(weights), tuple(kernels), tuple(find_sites(model, kernels)), {}, {})
    plan = plan.with_formats({name: solution.form for name, solution in numbers.items()})
    biases = {layer.name: constant(model.graph.initializers[layer.bias]) if layer.bias else None for layer in layers}
    flat = {name: None if bias is None else bias.reshape(-1) for name, bias in biases.items()}
    tuned = TunedNumbers(with_tables(numbers, weights), flat)
    return export(Lower().apply(Numbered(model, plan, tuned)).made, model).size


def _narrowest(weight: Weight, values: np.ndarray, bits: Sequence[int]) -> float:
    """Bits of one number at least, without scales and levels."""
    rows, solved = in_rows(weight, values), suited(weight, values, formats_of(tuple(bits)))
    exact = [solution.form.bits_per_weight for solution in direct(weight, values)]
    return min(exact + [form.least_bits(rows) for form in solved])


def _stand_in(weight: Weight, values: np.ndarray, bits: int, generator: np.random.Generator) -> Solution:
    """Codes of the fewest bits; the exact form of what has few values."""
    narrow = min(direct(weight, values), key=lambda solution: solution.form.bits)
    if not (np.isfinite(values).all() and narrow.form.is_plain):
        return narrow
    form = Integer(bits)
    codes = np.asarray(form.code_of(generator.integers(0, 2**bits, values.shape, np.int16)), np.int8)
    scale = generator.uniform(0.5, 1, values.shape[weight.channel_axis] if values.ndim else 1)
    return Solution(form, codes, storable(scale, np.ones_like(scale)), weight.channel_axis)
