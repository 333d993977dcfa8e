"""`ptqc inspect`: what a model is and what a compile of it would be, without data and in seconds."""

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import onnx
import onnx_ir as ir

from ptqc.artifact.unquantized import COSTS, float_operators
from ptqc.errors import ModelError, PtqcError
from ptqc.formats import PORTABLE_BITS, UINT8, Integer, QuantParams
from ptqc.frontend import ModelSource
from ptqc.frontend.in_memory import NAME, Model, read_source
from ptqc.frontend.model_files import parse, read_bytes
from ptqc.frontend.tensors import external_files
from ptqc.ir.external import is_in_files
from ptqc.ir.layers import find_inner_layers, find_layers, find_weights
from ptqc.ir.plan import Plan
from ptqc.ir.recorded import released
from ptqc.ir.sites import find_kernels, find_sites, useful_sites
from ptqc.options import CompileOptions
from ptqc.passes.allocate.smallest import estimated_size, lower_bound
from ptqc.passes.canonicalize.rewrites import default_rewrites
from ptqc.passes.quantize.solve_weights import formats_of
from ptqc.passes.runner import run_rewrites
from ptqc.tools.inspecting.facts import (
    Compilable,
    Inspection,
    StaysFloat,
    Tensor,
    content,
    effort,
    products_at_drawn_sizes,
    products_of_a_run,
)
from ptqc.utils.scratch import scratch

__all__ = ["Inspection", "inspect"]

# Budgets that most networks lose little at, as shares of the file.
SENSIBLE = (25, 13)
# Above the smallest file by so much a budget leaves room to choose.
ROOM = 1.2


def inspect(model: Model) -> Inspection:
    """Report what is known of an ONNX model without data.

    Args:
        model: An ONNX file or a model in memory, as for `ptqc.compile`.

    Returns:
        Inputs, layers, weights, and the sizes that can be reached; for a
        model that `ptqc.compile` refuses, the reason and what helps. `print`
        it.

    Raises:
        ModelError: The file is no ONNX model.

    Example:
        >>> print(ptqc.inspect("model.onnx"))
    """
    with scratch() as folder:
        try:
            source = read_source(model, Path(folder))
        except ModelError as error:
            path = Path(model) if isinstance(model, str | os.PathLike) else Path(folder) / NAME
            try:
                return _refused(path, str(error))
            except ModelError as no_model:
                raise ModelError(f"{path}: {no_model}") from no_model
        return _inspected(source)


def _inspected(source: ModelSource) -> Inspection:
    try:
        normal, notes = _normal_form(source)
        result = _compilable(source, normal)
    except PtqcError as error:
        return _described(source, str(error))
    return _described(source, None, result, notes)


def _normal_form(source: ModelSource) -> tuple[ir.Model, tuple[str, ...]]:
    """The model as it is quantized, and what changed. Nothing is run, so nothing is compared."""
    normal = source.model.clone()
    notes = run_rewrites(normal, default_rewrites(source.cast_double), [])
    return normal, tuple(str(note) for note in (*source.notes, *notes))


def _compilable(source: ModelSource, model: ir.Model) -> Compilable:
    options = CompileOptions()
    layers = find_layers(model)
    kernels, weights = find_kernels(model, layers), find_weights(model, layers)
    sites = useful_sites(find_sites(model, kernels), kernels, {layer.name for layer in layers})
    anything = {site.name: QuantParams(UINT8, 1.0, 0) for site in sites}
    plan = Plan(tuple(layers), tuple(weights), tuple(kernels), tuple(sites), anything, {})
    plan = plan.with_formats({weight.name: Integer(PORTABLE_BITS) for weight in weights})
    inner, macs, sizes = len(find_inner_layers(model)), products_of_a_run(model, layers), dict[str, int]()
    if macs is None:
        macs, sizes = products_at_drawn_sizes(model, layers)
    smallest = estimated_size(model, options.bits)
    # How often inner layers run, the graph does not say.
    known, in_files = None if inner else macs, is_in_files(model)
    work = effort(weights, formats_of(options.bits, weights), known, options.samples, in_files=in_files)
    sensible = {f"{share}%": source.size * share // 100 for share in SENSIBLE}
    return Compilable(
        layers=len(layers),
        inner_layers=inner,
        parameters=sum(weight.size for weight in weights),
        macs=macs,
        free_sizes=sizes,
        at_least=lower_bound(model, options.bits).bytes,
        smallest=smallest,
        sensible={budget: size for budget, size in sensible.items() if size > ROOM * smallest},
        seconds=work.seconds,
        memory=work.memory,
        stays_float=_stays_float(model, plan),
    )


def _stays_float(model: ir.Model, plan: Plan) -> tuple[StaysFloat, ...]:
    # Which operators 8 bits cost too much, only a compile measures; here all that can be on integers is.
    reasons = {COSTS: "its neighbours stay float"}
    counts = Counter(
        (result.op_type, reasons.get(result.reason, result.reason)) for result in float_operators(model, plan)
    )
    return tuple(StaysFloat(operator, count, reason) for (operator, reason), count in counts.most_common())


def _described(
    source: ModelSource, refusal: str | None, compilable: Compilable | None = None, notes: tuple[str, ...] = ()
) -> Inspection:
    model = released(source.model)
    operators = Counter(node.op_type for node in model.graph.all_nodes())
    fed = [value for value in model.graph.inputs if value.name not in model.graph.initializers]
    inputs = tuple(_tensor(value, content(model, str(value.name))) for value in fed)
    outputs = tuple(_tensor(value) for value in model.graph.outputs)
    opset = model.opset_imports.get("")
    return Inspection(
        source.called, source.size, opset, inputs, outputs, _ordered(operators), compilable, refusal, notes
    )


def _tensor(value: ir.Value, what: str = "") -> Tensor:
    dims = None if value.shape is None else tuple(d.value if isinstance(d, ir.SymbolicDim) else d for d in value.shape)
    kind = value.dtype.name.lower() if value.dtype is not None else str(value.type)
    return Tensor(str(value.name), kind, dims, what)


def _refused(path: Path, refusal: str) -> Inspection:
    """What can be said of a file that is not read as a model. Raises ModelError where it is no ONNX at all."""
    data = read_bytes(path)
    proto = parse(data)
    graph, opsets = proto.graph, {entry.domain: entry.version for entry in proto.opset_import}
    constants = {tensor.name for tensor in graph.initializer}
    inputs = tuple(_declared(value) for value in graph.input if value.name not in constants)
    operators = Counter(node.op_type for node in graph.node)
    outputs = tuple(map(_declared, graph.output))
    files = external_files(proto, path.parent)
    missing = tuple(sorted(name for name, file in files.items() if not os.path.isfile(file)))  # noqa: PTH113 - any name
    opset = opsets.get("")
    return Inspection(
        str(path), len(data), opset, inputs, outputs, _ordered(operators), refusal=refusal, missing=missing
    )


def _declared(value: onnx.ValueInfoProto) -> Tensor:
    if not value.type.HasField("tensor_type"):
        return Tensor(value.name, value.type.WhichOneof("value") or "of no type", None)
    tensor = value.type.tensor_type
    dims = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim)
    kind = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
    return Tensor(value.name, kind, dims if tensor.HasField("shape") else None)


def _ordered(counts: Mapping[str, int]) -> dict[str, int]:
    """The most frequent first."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
