"""The checks that a written file passes before it is delivered.

Size; checker; inputs and outputs as in the model; census: every node that the plan makes integer is an integer kernel;
stored: every weight is, bit by bit, what was tuned, in the format of the plan; parity: every kernel, given the integers
that ONNX Runtime gave it, yields exactly the reference's integers; intent: every operator, kernels and others, gives up
to rounding what the plan asks of it; agreement of the outputs with the unpacked graph run without any optimization.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import helper

from ptqc.codegen.onnxruntime import matmul_nbits
from ptqc.codegen.onnxruntime.export import Exported
from ptqc.codegen.onnxruntime.lookup import StoredLookup, lookups
from ptqc.codegen.onnxruntime.matmul_nbits import (
    EXACT,
    LEVEL_OF_FUSED,
    STORED,
    BlockProduct,
    DequantizedProduct,
    without_rounding,
)
from ptqc.codegen.onnxruntime.unpack_functions import BITS_INPUTS, Pick, UnpackFunction, UnpackKind
from ptqc.codegen.onnxruntime.verify_semantics import Intent
from ptqc.errors import Interrupted, VerificationError
from ptqc.execution.agreement import Difference, alike, allowed
from ptqc.execution.onnxruntime import (
    WITHOUT,
    Feeds,
    Runner,
    is_lean,
    open_packed,
    open_proto,
    session_options,
    tensors_of,
    without_tensors,
)
from ptqc.execution.saturation import EXACT_SUMS, IN_FLOAT
from ptqc.formats import FloatActivation, Format, Integer, VectorCodebook
from ptqc.formats.safe import saturates
from ptqc.ir import protos, reference, zipmaps
from ptqc.ir.external import array_of, has_references, is_split
from ptqc.ir.integer_arithmetic import quantize
from ptqc.ir.lowered import Lowered
from ptqc.ir.operators import OPERATORS
from ptqc.ir.operators.base import LoweredStep
from ptqc.ir.plan import Plan
from ptqc.kv_cache.form import unpacked_feeds
from ptqc.kv_cache.known import forms_of_outputs
from ptqc.utils.scratch import scratch

# Every integer kernel of a packed file, given the integers that ONNX Runtime gave it, against the reference.


def compare(
    proto: onnx.ModelProto,
    lowered: Lowered,
    samples: Sequence[Feeds],
    renamed: Mapping[str, str] | None = None,
    own: Mapping[str, str] = MappingProxyType({}),
) -> tuple[int, int]:
    """Kernels compared, and the numbers that they gave; all must be the reference's, or within its bounds.

    renamed: name in the lowered graph -> name in the file; None where they are the same. own: the model's
    name of a value, by its name in the lowered graph, where messages are to have another one. Raises VerificationError.
    """
    steps: list[LoweredStep | StoredLookup] = [*reference.steps(lowered), *lookups(lowered.model)]
    names = sorted({name for step in steps for name in (*step.inputs, step.output)})
    short = names if renamed is None else [renamed[name] for name in names]
    if not steps:
        return 0, 0
    runner = Runner(proto, short)
    compared = 0
    for feeds in samples:
        result = runner.run(feeds, short)
        values = {name: result[other] for name, other in zip(names, short, strict=True)}
        compared += sum(_check_kernel(step, values, own) for step in steps)
    return len(steps), compared


def _check_kernel(step: LoweredStep | StoredLookup, values: Mapping[str, np.ndarray], own: Mapping[str, str]) -> int:
    """The size of one kernel's output. Raises VerificationError where anything in it differs."""
    low, high = step.bounds(values) if isinstance(step, StoredLookup) else reference.bounds(step, values)
    result = values[step.output]
    name = f"{step.kind} {own[step.output]}" if step.output in own else step.name
    if result.shape != low.shape:
        raise VerificationError(f"{name} has the shape {result.shape}; the reference has {low.shape}")
    wrong = int(np.count_nonzero(~((low <= result) & (result <= high))))  # NaN included
    if wrong:
        distance = np.maximum(low.astype(np.float64) - result, result - high.astype(np.float64)).max()
        what = "real values" if result.dtype.kind == "f" else "integers"
        raise VerificationError(
            f"{name}: {wrong} of {result.size} {what} differ from the reference, by up to {distance:.6g}"
        )
    return result.size


# Which kernels ONNX Runtime really picked, read from the model that it optimized.

MARK = ";"
# What is too large for one message ONNX Runtime writes to two files, as well.
BESIDE: Mapping[str, str] = {
    "session.optimized_model_external_initializers_file_name": "optimized.data",
    "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
}


@dataclass(frozen=True)
class Census:
    """Operators of the optimized graph, the planned integer nodes that did not become integer kernels, and the products
    that were not fused with their weights.
    """

    operators: Mapping[str, int]
    missed: Mapping[str, str]
    unfused: Sequence[str] = ()


def take(
    proto: onnx.ModelProto,
    expected: Mapping[str, tuple[str, str]],
    fused: Sequence[str] = (),
    *,
    lean: bool = False,
) -> Census:
    """Count kernels. expected: node -> (operator, name in the file of its codes, or of its float output). fused: names
    in the file of products to be fused with their weights. lean: leave weights packed where nothing is expected.

    The optimizer renames values but keeps node names as prefixes, so a copy of the file with named nodes is optimized.
    """
    named = onnx.ModelProto()
    named.CopyFrom(proto)
    makers = {name: node for node in named.graph.node for name in node.output}
    marks = _mark({node: _kernel(makers, *value) for node, value in expected.items()}, "k")
    products = _mark({name: maker for name, maker in makers.items() if name in fused}, "p")
    graph = optimized(named, WITHOUT if lean and not expected and not fused else ())
    results = {node.name.partition(MARK)[0]: node.op_type for node in graph.node if MARK in node.name}
    unfused = [name for name, mark in products.items() if results.get(mark) != matmul_nbits.OPERATOR]
    missed = {}
    for node, (operator, _) in expected.items():
        kernel = results.get(marks[node], "nothing")
        if kernel not in OPERATORS[operator].kernels:
            missed[node] = kernel
    return Census(dict(sorted(Counter(n.op_type for n in graph.node).items())), missed, unfused)


def values(proto: onnx.ModelProto) -> set[str]:
    """Names of what the optimized graph's nodes make: what no kernel keeps to itself."""
    return {name for node in optimized(proto).node for name in node.output}


def optimized(proto: onnx.ModelProto, without: Sequence[str] = ()) -> onnx.GraphProto:
    """The graph that ONNX Runtime makes of a file when it loads it, without some of its optimizations.

    Large tensors of files that are too large for one message are references, to files that are gone.
    """
    with scratch() as folder:
        path = Path(folder) / "optimized.onnx"
        options = session_options()
        options.optimized_model_filepath = str(path)
        is_large = is_split(proto) or has_references(proto)
        for name, value in BESIDE.items() if is_large else ():
            options.add_session_config_entry(name, value)
        try:
            open_proto(proto, options, without)
            return onnx.load(path, load_external_data=False).graph
        except Exception:
            if not is_large:
                path.write_bytes(proto.SerializeToString())  # where the disk is at fault, this says so
            raise


def _kernel(makers: Mapping[str, onnx.NodeProto], operator: str, value: str) -> onnx.NodeProto:
    """The node that computes an expected value. makers: nodes by their outputs."""
    maker = makers[value]
    if maker.op_type == "QuantizeLinear" or OPERATORS[operator].is_looked_up:  # what a table gives gets a shape
        maker = makers[maker.input[0]]
    return maker


def _mark(nodes: Mapping[str, onnx.NodeProto], kind: str) -> dict[str, str]:
    """Name nodes; their marks, by the same keys."""
    marks = {key: f"{kind}{number}" for number, key in enumerate(nodes)}
    for key, node in nodes.items():
        node.name = marks[key] + MARK
    return marks


# What a session of a delivered file needs on x64 processors without VNNI, so that 8-bit weights do not saturate.


def settings(exported: Exported) -> Mapping[str, str]:
    """Entries of a session; none where no integer kernel has weights that may saturate.

    Where two of these share codes, or scales, from which their zero points are made, the fast way cannot be had.
    """
    kinds = (UnpackKind.LAYER, UnpackKind.WEIGHT)
    wide = {function.name for function in exported.functions if function.kind in kinds and _may_saturate(function)}
    nodes = exported.packed.graph.node
    readers = {node.input[1]: node for node in nodes if node.op_type == "Conv"}
    shapes = {tensor.name: list(tensor.dims) for tensor in exported.packed.graph.initializer}
    calls = [node for node in nodes if node.op_type in wide]
    calls = [node for node in calls if not _is_depthwise(shapes[node.input[0]], readers.get(node.output[0]))]
    read = [name for call in calls for name in call.input[:2]]  # codes and scales
    if not calls:
        return {}
    return EXACT_SUMS if len(set(read)) == len(read) else IN_FLOAT


def _may_saturate(function: UnpackFunction) -> bool:
    return function.form is not None and function.form.may_saturate


def _is_depthwise(shape: Sequence[int], reader: onnx.NodeProto | None) -> bool:
    """Whether a weight of this shape is that of a depthwise layer, whose products are added in 32 bits."""
    if reader is None:
        return False
    groups = next((a.i for a in reader.attribute if a.name == "group"), 1)
    return list(shape[:2]) == [groups, 1]


# Every weight of a packed file, rebuilt as a session rebuilds it, against the numbers that it stands for.

# Weights of more elements together are rebuilt one after the other.
TOGETHER = 2**23


def check(exported: Exported, lowered: Lowered, intent: Intent) -> int:
    """Compare values bit by bit and formats with the plan's; the number of weights. Raises VerificationError."""
    weights = {layer.name: layer.weight for layer in intent.plan.layers}
    weights |= {weight.table: weight.name for weight in intent.plan.weights if weight.table is not None}
    places = {**lowered.weights, **{w.name: w.name for w in intent.plan.weights if w.name in exported.renamed}}
    makers = {name: node for node in exported.packed.graph.node for name in node.output}
    forms = {function.name: function.form for function in exported.functions}
    tensors = {tensor.name: tensor for tensor in exported.packed.graph.initializer}
    types = {name: helper.tensor_dtype_to_np_dtype(tensor.data_type).name for name, tensor in tensors.items()}
    seen = set()
    for place, of, name, result in _stored_weights(exported, places, intent):
        weight = weights.get(of, of)
        planned = intent.plan.formats[weight]
        form = _form(name, makers, forms, types) or _listed(makers[name], tensors, planned)
        if form != (planned if planned.parameters else planned.unpacked_as):
            raise VerificationError(f"weight {weight!r} is stored as {form}, not as {planned} as the plan says")
        solution = intent.solution(of)
        if not np.array_equal(solution.weight, result):
            raise VerificationError(f"weight {weight!r}, made as {place!r}, is not what was tuned")
        if planned.in_pairs and saturates(solution.codes, solution.axis):
            raise VerificationError(f"weight {weight!r} is {planned}, and has a pair of codes that saturates")
        seen.add(weight)
    # Of equal float constants one is stored.
    packed = {name for name, form in intent.plan.formats.items() if not form.is_given}
    if missing := sorted(packed - seen):
        raise VerificationError(f"weights are not in the file: {', '.join(missing[:5])}")
    return len(seen)


def _stored_weights(
    exported: Exported, places: Mapping[str, str], intent: Intent
) -> Iterator[tuple[str, str, str, np.ndarray]]:
    """Places, weights and names in the file with the values there; about TOGETHER elements are made at once."""
    group, size = list[tuple[str, str, str]](), 0
    for place, of in places.items():
        if (pick := exported.picks.get(place)) is not None:
            yield place, of, exported.renamed[pick.rows], _every_row(exported, pick)
            continue
        if (block := exported.blocks.get(place)) is not None:
            yield place, of, exported.renamed[block.source], _product_with_ones(exported, block)
            continue
        group.append((place, of, exported.renamed[place]))
        size += intent.solution(of).codes.size
        if size >= TOGETHER:
            yield from _computed_weights(exported.proto, group)
            group, size = [], 0
    yield from _computed_weights(exported.proto, group)


def _computed_weights(
    proto: onnx.ModelProto, group: Sequence[tuple[str, str, str]]
) -> Iterator[tuple[str, str, str, np.ndarray]]:
    if group:
        for each, value in zip(group, _values(proto, [name for _, _, name in group]), strict=True):
            yield *each, value


def _form(
    name: str, makers: Mapping[str, onnx.NodeProto], forms: Mapping[str, Format | None], types: Mapping[str, str]
) -> Format | None:
    """The format behind a value: of the function that makes it, or of the tensor, which nodes may turn or cast.

    None where one function unpacks several.
    """
    maker = makers.get(name)
    if maker is not None and maker.op_type in (matmul_nbits.OPERATOR, matmul_nbits.PICKER):
        return Integer(next(a.i for a in maker.attribute if a.name == "bits"))
    if maker is None:
        return Format.parse(types[name])
    if any(a.name == "block_size" for a in maker.attribute):
        return Integer({np.dtype(dtype).name: bits for bits, (dtype, _) in STORED.items()}[types[maker.input[0]]])
    if not maker.domain:
        return _form(maker.input[0], makers, forms, types)
    form = forms[maker.op_type]
    return None if form is None else form.stated_by({a.name: list(a.ints) for a in maker.attribute})


def _listed(call: onnx.NodeProto, tensors: Mapping[str, onnx.TensorProto], planned: Format) -> Format:
    """The format of single bits: as planned, if they are as many, for as many weights."""
    stored = dict(zip(BITS_INPUTS, call.input, strict=False))
    bits, levels = tensors[stored["w"]].dims[1], tensors[stored["v"]].dims
    group = levels[1] if len(levels) > 1 else 1
    is_planned = planned.in_order and (bits, group) == (planned.bits, planned.group)
    return planned if is_planned else Integer(bits) if group == 1 else VectorCodebook(bits)


def _product_with_ones(exported: Exported, block: BlockProduct) -> np.ndarray:
    """A weight as the operator multiplies with it, when it does not round what it reads."""
    x, product = (exported.renamed[name] for name in (block.x, block.product))
    (result,) = _values(exported.proto, [product], {x: np.eye(block.width, dtype=np.float32)})
    return result if block.is_turned else result.T


def _every_row(exported: Exported, pick: Pick) -> np.ndarray:
    """A table, row by row as the file picks them."""
    rows, places = (exported.renamed[name] for name in (pick.rows, pick.places))
    count = len(pick.solution.codes)
    every = np.arange(count, dtype=pick.dtype).reshape(count, *(1,) * (pick.rank - 1))
    (result,) = _values(exported.proto, [rows], {places: every})
    return result.reshape(count, -1)


def _values(
    proto: onnx.ModelProto, names: Sequence[str], inputs: Mapping[str, np.ndarray] = MappingProxyType({})
) -> list[np.ndarray]:
    """Values that nodes make of initializers and of what is given, or initializers themselves."""
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    outputs = [name for name in names if name not in tensors]
    nodes, read = list[onnx.NodeProto](), set(outputs)
    for node in reversed(proto.graph.node):
        if not (read - inputs.keys()).isdisjoint(node.output):
            nodes.append(node)
            read.update(node.input)
    part = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    part.graph.name = "weights"
    part.graph.node.extend(reversed(nodes))
    part.graph.initializer.extend(tensor for name, tensor in tensors.items() if name in read)
    part = matmul_nbits.without_rounding(part, outputs)
    part.graph.input.extend(_described(name, array) for name, array in inputs.items())
    part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    result = Runner(part, options=session_options(optimize=False)).run(dict(inputs)) if outputs else {}
    return [result[name] if name in result else array_of(tensors[name]) for name in names]


def _described(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


@dataclass(frozen=True)
class Verified:
    """What was checked and found."""

    operators: Mapping[str, int]
    integer_nodes: int
    kernels_compared: int
    codes_compared: int
    kernels_as_planned: int
    operators_as_planned: int
    weights_as_tuned: int
    output_difference: float
    load_seconds: float

    def to_json(self) -> dict[str, Any]:
        """The document for the manifest: everything but the time."""
        document = asdict(self)
        del document["load_seconds"]
        return document


def verify(
    exported: Exported,
    lowered: Lowered,
    intent: Intent,
    samples: Sequence[Feeds],
    limit: int | None,
) -> Verified:
    """Run all checks. Raises VerificationError naming the first check that fails."""
    if limit is not None and exported.size > limit:
        raise VerificationError(f"the file has {exported.size:,} bytes, over the budget of {limit:,}")
    _check(exported.proto)
    _same_interface(exported.proto, intent.model)
    _same_decisions(lowered, intent.plan)
    census, seconds = _census(exported, lowered, intent.plan, lean=is_lean(exported.proto, intent.model))
    weights = check(exported, lowered, intent)
    kernels, codes = compare(exported.proto, lowered, samples[:1], exported.renamed)
    rough = frozenset(value for product in exported.blocks.values() for value in _layer_values(product.output, intent))
    operators = _as_planned(exported, lowered, replace(intent, rough=rough), samples[0])
    difference = _agreement(exported, lowered, intent.model, samples)
    integer = len(intent.plan.integer_here)
    return Verified(census.operators, integer, kernels, codes, integer, operators, weights, difference, seconds)


def _layer_values(output: str, intent: Intent) -> set[str]:
    """A layer's output, and what an activation that is absorbed makes of it."""
    return {output, *(layer.output for layer in intent.plan.layers if layer.name == output)}


def _check(proto: onnx.ModelProto) -> None:
    try:
        onnx.checker.check_model(without_tensors(proto) if has_references(proto) else proto)
    except onnx.checker.ValidationError as error:
        raise VerificationError(f"the written file does not pass the ONNX checker: {error}") from error


def _census(exported: Exported, lowered: Lowered, plan: Plan, *, lean: bool) -> tuple[Census, float]:
    """lean: load the file without unpacking its weights, where nothing is on integer kernels."""
    expected = {}
    for name, kernel in plan.integer_here.items():
        value = lowered.codes.get(name) or lowered.codes.get(kernel.output, kernel.output)
        expected[name] = (kernel.op_type, exported.renamed[value])
    dequantized = (one for one in exported.blocks.values() if isinstance(one, DequantizedProduct))
    fused = {exported.renamed[product.product]: product.weight for product in dequantized}
    started = time.monotonic()
    try:
        census = take(exported.proto, expected, list(fused), lean=lean)
    except (OSError, Interrupted):  # of the disk, not of the file
        raise
    except Exception as error:  # ONNX Runtime raises a dozen types of its own
        raise VerificationError(f"ONNX Runtime {ort.__version__} cannot load the written file: {error}") from error
    if census.missed:
        name, result = next(iter(census.missed.items()))
        raise VerificationError(
            f"{len(census.missed)} of {len(expected)} planned integer nodes run in float, first {name} (as {result})"
        )
    if census.unfused:
        first = fused[census.unfused[0]]
        raise VerificationError(
            f"ONNX Runtime {ort.__version__} does not fuse {len(census.unfused)} of {len(fused)} products with their "
            f"weights, which it would unpack in every run, first {lowered.weights[first]!r}: give operators "
            "'onnxruntime', or 'standard'"
        )
    return census, time.monotonic() - started


def _same_interface(proto: onnx.ModelProto, model: ir.Model) -> None:
    wanted, result, maps = protos.interface(model), proto.graph, zipmaps.remembered(model)
    outputs = [zipmaps.original_output(value, maps) for value in wanted.output]
    for operand, remaining in ((list(wanted.input), result.input), (outputs, result.output)):
        if operand != list(remaining):
            names = ", ".join(value.name for value in remaining)
            raise VerificationError(f"the file's interface ({names}) is not that of the model")
    if (labels := zipmaps.labels(result)) != maps:
        raise VerificationError(f"the class labels in the file's maps ({labels}) are not those of the model ({maps})")


def _same_decisions(lowered: Lowered, plan: Plan) -> None:
    """What is quantized and what computes on integers is what the plan says."""
    quantized = lowered.codes.keys() - {name for name, kernel in plan.integer.items() if kernel.output != name}
    decisions = (
        ("quantized", quantized, plan.params),
        ("integer", lowered.integer, plan.integer),
        ("rounded", _roundings(lowered.cast), _roundings(plan.cast)),
    )
    for what, done, planned in decisions:
        if different := sorted(set(done) ^ set(planned)):
            raise VerificationError(f"{', '.join(different[:5])}: {what} in the file or in the plan, but not in both")


def _roundings(cast: Mapping[str, FloatActivation]) -> set[str]:
    return {f"{tensor} to {form}" for tensor, form in cast.items()}


def _as_planned(exported: Exported, lowered: Lowered, intent: Intent, feeds: Feeds) -> int:
    """Operators that give what the plan asks of them, which must be all."""
    renamed, params = exported.renamed, intent.plan.params
    values = {name: renamed[codes] for name in params if (codes := lowered.codes[name]) in renamed}
    values |= {name: renamed[name] for name in intent.floating() if name in renamed}
    # A graph output that is rounded is made under another name.
    before = {name: lowered.before_rounding(name) for name in intent.rounded()}
    reals = {name: renamed.get(real, renamed[name]) for name, real in before.items()}
    taps = sorted({*values.values(), *reals.values()} - feeds.keys())
    results = {
        **feeds,
        **(Runner(exported.proto, taps, lean=is_lean(exported.proto, intent.model)).run(feeds, taps) if taps else {}),
    }
    # Where only pools in float read a tensor, the file does not have its codes.
    implied = {name: quantize(results[short], params[name]) for name, short in reals.items() if name not in values}
    return intent.check(
        {name: results[short] for name, short in values.items()} | implied,
        {name: results[short] for name, short in reals.items() if name in values},
    )


def _exact(exported: Exported, model: ir.Model) -> Runner:
    """The file, whose products in blocks do not round what they read: that is no error of the file.

    How much they round is held to its limit product by product.
    """
    if not exported.blocks:
        return open_packed(exported.proto, model)
    options = session_options()
    options.add_session_config_entry(LEVEL_OF_FUSED, str(EXACT))
    products = {exported.renamed[each.product] for each in exported.blocks.values()}
    return open_packed(without_rounding(exported.proto, products), model, options)


def _agreement(exported: Exported, lowered: Lowered, model: ir.Model, samples: Sequence[Feeds]) -> float:
    """Relative difference of the file's outputs from the unpacked graph without optimizations, over all samples."""
    delivered, plain, real = (
        _exact(exported, model),
        Runner(lowered.model, options=session_options(optimize=False), lean=is_lean(exported.proto, model)),
        Runner(model),
    )
    worst, forms = 0.0, forms_of_outputs(model)
    quantized, packed = defaultdict[str, Difference](Difference), defaultdict[str, Difference](Difference)
    for feeds in samples:
        outputs = [tensors_of(runner.run(feeds)) for runner in (real, plain, delivered)]
        for name, array in outputs[1].items():
            _same_kind(array, outputs[2][name], name)
        inputs, wanted, results = (unpacked_feeds(each, forms) for each in outputs)
        for name in (name for name, array in wanted.items() if array.dtype.kind == "f"):
            quantized[name].add_to_float(inputs[name], wanted[name])
            packed[name].add(wanted[name], results[name])
    for name, compared in packed.items():
        tolerance, difference = allowed(quantized[name].relative), compared.relative
        if not difference <= tolerance:  # NaN included
            raise VerificationError(
                f"output {name!r} of the file differs from the unpacked graph by {difference:.1%} of its size "
                f"(allowed here {tolerance:.1%})"
            )
        worst = max(worst, difference)
    return worst


def _same_kind(wanted: np.ndarray, result: np.ndarray, name: str) -> None:
    if not alike(wanted, result):
        raise VerificationError(
            f"output {name!r} is {result.dtype}{result.shape} in the file, {wanted.dtype}{wanted.shape} in the graph"
        )
