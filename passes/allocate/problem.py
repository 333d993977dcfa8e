"""What the bytes of a plan are, and with them the problem that allocation solves."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from zlib import crc32

import numpy as np
import onnx_ir as ir

from ptqc.codegen.onnxruntime import constants, names, size
from ptqc.codegen.onnxruntime.export import Exported, export
from ptqc.codegen.onnxruntime.matmul_nbits import BLOCK_PRODUCTS, block_size, takes
from ptqc.formats import FLOAT8, Format, coded
from ptqc.ir.external import fits_in_memory
from ptqc.ir.integer_arithmetic import accumulator_scale, bias_codes, bits_for, usable_scale
from ptqc.ir.layers import Layer, Weight, pickers, stays_packed
from ptqc.ir.lowered import Lowered
from ptqc.ir.nodes import constant, rank
from ptqc.ir.plan import Plan
from ptqc.ir.quantized_weight import QuantizedParameters, QuantizedWeight, with_tables
from ptqc.options import CompileOptions
from ptqc.passes.allocate.allocation import Candidate, Problem, best_choice, smallest_choice
from ptqc.passes.allocate.lower import Lower
from ptqc.passes.effects import applied
from ptqc.passes.quantize.phases import Analysis, PlanWithParameters

USUAL = CompileOptions()


def problem_of(analysis: Analysis, plan: Plan, options: CompileOptions) -> Problem:
    """Candidates with their bytes; what every plan has is weighed on two plans that are really written."""
    model, length = analysis.model, name_length(analysis.model, plan)
    candidates: list[Candidate] = []
    opset, once = model.opset_imports[""], dict[str, int]()
    for weight in analysis.weights:
        for form in forms(weight, analysis, plan, options):
            solution = analysis.solutions[weight.name, form]
            uses = [_use(model, layer, weight, solution, plan, options) for layer in weight.layers]
            uses += _uses_of_table(model, weight, solution, options)
            stored = size.stored(solution, uses, length, inline=options.inline, tied=weight.table is not None)
            parts = stored.parts(opset)
            once |= parts
            loss = analysis.weight_losses[weight.name, form]
            memory = size.loaded(solution, uses, stored.own, weight.size)
            candidates.append(Candidate(weight.name, form, stored.own, loss, tuple(parts), memory))
    empty = Problem(tuple(candidates), 0, once)
    smallest = smallest_choice(empty)
    extremes = [smallest, *(best for best in (best_choice(empty),) if fits_in_memory(empty.size(best)))]
    fixed = max(weighed(analysis, options, plan.with_formats(choice)) - empty.size(choice) for choice in extremes)
    return replace(empty, fixed=fixed, memory=analysis.weight_memory, flash=analysis.flash)


def forms(weight: Weight, analysis: Analysis, plan: Plan, options: CompileOptions) -> Sequence[Format]:
    """The formats a weight may take: on an integer kernel codes that cannot saturate, else everything.

    None saturate in depthwise layers, whose kernels add in 32 bits. Where there are no such codes, as few families or
    widths are tried: any codes, if 8 bits are allowed, or real numbers, with which the layer computes in float. Where
    an operator may keep it packed in memory, those that it takes, if it takes any; those that are stored as FP8 where
    that is asked for, if a layer reads it.
    """
    result = sorted(form for name, form in analysis.solutions if name == weight.name)
    if options.in_float8 and weight.layers and FLOAT8 in result:
        return [FLOAT8]
    if not any(layer.name in plan.integer for layer in weight.layers):
        return forms_in_float(weight, result, options)
    codes = [form for form in result if form.has_codes]
    is_exact = not options.rules.saturates or all(layer.is_depthwise for layer in weight.layers)
    allowed = [form for form in codes if not form.may_saturate]
    if options.allow_8bit:
        allowed = codes if is_exact else allowed or codes
    return allowed or [form for form in result if not form.has_codes]


def forms_in_float(weight: Weight, forms: Sequence[Format], options: CompileOptions) -> Sequence[Format]:
    """Of these formats, those that a weight may take whose layers all compute in float, or on codes of 16 bits."""
    if options.rules.wide and weight.layers:
        return [form for form in forms if form.code_bits is not None] or forms
    products = weight.layers
    in_blocks = [f for f in forms if products and all(_goes_in_blocks(weight, one, f, options) for one in products)]
    return in_blocks or forms


def table_parameters(analysis: Analysis, choice: Mapping[str, Format]) -> QuantizedParameters:
    """The table's own numbers, without bias correction: enough to weigh a plan."""
    weights = with_tables({name: analysis.solutions[name, form] for name, form in choice.items()}, analysis.weights)
    return QuantizedParameters(weights, uncorrected(analysis.model, analysis.layers))


def uncorrected(model: ir.Model, layers: Sequence[Layer]) -> dict[str, np.ndarray | None]:
    """The biases of layers as they are, and any where correction will make one."""
    return {layer.name: _bias(model, layer) if layer.may_have_bias else None for layer in layers}


def packed(
    analysis: Analysis, plan: Plan, tuned: QuantizedParameters, options: CompileOptions = USUAL
) -> tuple[Lowered, Exported]:
    """The lowered graph of a plan with its numbers, and its file; see `pack`."""
    lowered = lower(analysis, plan, tuned)
    return lowered, pack(analysis, plan, lowered, options)


def lower(analysis: Analysis, plan: Plan, tuned: QuantizedParameters) -> Lowered:
    """The lowered graph of a plan with its numbers."""
    return applied(Lower(), PlanWithParameters(analysis.model, plan, tuned)).output


def pack(
    analysis: Analysis,
    plan: Plan,
    lowered: Lowered,
    options: CompileOptions = USUAL,
    arrays: constants.Pack = constants.packed,
) -> Exported:
    """The file of a plan's lowered graph, with the functions and operators that the options allow.

    arrays: `constants.sized` where only its size matters.
    """
    length = name_length(analysis.model, plan)
    kind = BLOCK_PRODUCTS.get(options.operators)
    return export(lowered, analysis.model, length, inline=options.inline, in_blocks=kind, pack=arrays)


def weighed(analysis: Analysis, options: CompileOptions, plan: Plan) -> int:
    """Bytes of a plan's file with the table's numbers."""
    numbers = table_parameters(analysis, plan.formats)
    return pack(analysis, plan, lower(analysis, plan, numbers), options, constants.sized).size


def _use(
    model: ir.Model, layer: Layer, weight: Weight, solution: QuantizedWeight, plan: Plan, options: CompileOptions
) -> size.Use:
    is_integer = layer.name in plan.integer and solution.form.has_codes
    if not is_integer and _goes_in_blocks(weight, layer, solution.form, options):
        is_clipped = layer.output != layer.name or layer.name in plan.params
        return size.Use(in_blocks=BLOCK_PRODUCTS[options.operators], apart=(layer.input in plan.params) + is_clipped)
    return size.Use(is_integer, bias_of(model, layer, solution, plan))


def bias_of(
    model: ir.Model, layer: Layer, solution: QuantizedWeight, plan: Plan, bias: np.ndarray | None = None
) -> constants.Bias | None:
    """The bias of a layer on codes as the file may have it; None where it has none. bias: None for the model's."""
    if layer.name not in plan.integer or not solution.form.has_codes or not layer.may_have_bias:
        return None
    x, y = plan.params[layer.input], plan.params.get(layer.output)
    bias = _bias(model, layer) if bias is None else bias
    scale = usable_scale(solution.scale, bias, x)
    products = accumulator_scale(x, scale)
    return constants.Bias(bias_codes(bias, products, bits_for(solution.form, bias, y)), products)


def _uses_of_table(
    model: ir.Model, weight: Weight, solution: QuantizedWeight, options: CompileOptions
) -> list[size.Use]:
    """What picks rows of a table that stays packed, or the one that unpacks it."""
    if weight.layers and weight.table is None:
        return []
    shape = solution.codes.shape if weight.table is None else solution.by_channel().codes.shape
    result = pickers(model.graph.initializers[weight.table or weight.name])
    if not stays_packed(solution.form, shape) or not result:
        return [size.Use(is_table=True)]
    kind = BLOCK_PRODUCTS.get(options.operators)
    goes = kind is not None and kind.takes_tables and block_size(solution.form, shape[1]) is not None
    return [size.Use(in_blocks=kind if goes else None, is_table=True, rank=rank(node.inputs[1])) for node in result]


def _goes_in_blocks(weight: Weight, layer: Layer, form: Format, options: CompileOptions) -> bool:
    """Whether a product in float keeps a weight of this format packed in memory, as the options allow it.

    A tied one does where its table stays packed in the same form.
    """
    kind = BLOCK_PRODUCTS.get(options.operators)
    if kind is None or layer.is_convolution or not takes(kind, form, layer.width, len(weight.layers)):
        return False
    return weight.table is None or (kind.takes_tables and stays_packed(form, (layer.channels, layer.width)))


def _bias(model: ir.Model, layer: Layer) -> np.ndarray:
    if layer.bias and (bias := constant(model.graph.initializers[layer.bias])) is not None:
        return bias.reshape(-1)
    # Bias correction gives every layer a bias of its own: equal ones would be stored once, and round ones in few bits.
    return np.random.default_rng(crc32(layer.name.encode())).uniform(0.05, 0.1, layer.channels).astype(np.float32)


def name_length(model: ir.Model, plan: Plan) -> int:
    """Characters per name, the same for every choice of formats: from an upper estimate of the names in the file."""
    per_layer, per_site, per_cast, per_table = 7, 5, 2, 4
    tables = sum(weight.table is not None or not weight.layers for weight in plan.weights)
    values = sum(len(node.outputs) for node in model.graph) + len(model.graph.inputs) + len(model.graph.initializers)
    added = per_layer * len(plan.layers) + per_site * len(coded(plan.activations)) + per_table * tables
    added += per_cast * len(plan.cast)
    return names.name_length(values + added)
