"""Which operators and versions are accepted: ONNX's own, in float, that the installed runtime can run."""

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from onnx.defs import SchemaError

from ptqc.errors import ModelError
from ptqc.frontend.classical import DOMAIN as CLASSICAL
from ptqc.ir.operators import Trait, named
from ptqc.ir.protos import all_nodes, every_graph, every_node, label

# Normalizations that ONNX Runtime's optimizer writes as if ONNX defined them there, in operators that it does define.
#
# SimplifiedLayerNormalization (x over the root of its mean square) belongs to no version of ONNX, LayerNormalization to
# none before 17.

WHOLE = "LayerNormalization"
SIMPLIFIED = "SimplifiedLayerNormalization"
INTRODUCED = 17  # LayerNormalization
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
AXES_ARE_INPUT = 18  # of ReduceMean


def write_out_normalizations(model: onnx.ModelProto) -> None:
    """Replace them in the model, in place. Those over more than the last axis stay, and are refused as unknown."""
    version = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
    kinds = {tensor.name: tensor.data_type for graph in every_graph(model) for tensor in graph.initializer}
    for graph in every_graph(model):
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            kind = kinds.get(node.input[1], TensorProto.FLOAT) if len(node.input) > 1 and node.output else None
            nodes += _written(node, version, kind) if kind in FLOATS and _is_meant(node, version) else [node]
        if len(nodes) > len(graph.node):
            del graph.node[:]
            graph.node.extend(nodes)


def _is_meant(node: onnx.NodeProto, version: int) -> bool:
    foreign = node.op_type == SIMPLIFIED or (node.op_type == WHOLE and version < INTRODUCED)
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), -1)
    return foreign and node.domain == "" and axis == -1 and not any(node.output[1:])


def _written(node: onnx.NodeProto, version: int, kind: int) -> list[onnx.NodeProto]:
    """((x - mean) / √(variance + ε)) · scale + bias, without mean and bias for the simplified one.

    kind: type of the numbers.
    """
    epsilon = next((attribute.f for attribute in node.attribute if attribute.name == "epsilon"), 1e-5)
    written: list[onnx.NodeProto] = []

    def op(op_type: str, *inputs: str, **attributes: Any) -> str:
        output = f"{node.output[0]}/{len(written)}"
        written.append(helper.make_node(op_type, inputs, [output], **attributes))
        return output

    def constant(number: float) -> str:
        return op("Constant", value=numpy_helper.from_array(np.array(number, helper.tensor_dtype_to_np_dtype(kind))))

    def mean(name: str) -> str:
        if version < AXES_ARE_INPUT:
            return op("ReduceMean", name, axes=[-1])
        return op("ReduceMean", name, op("Constant", value_ints=[-1]))

    x = node.input[0]
    if node.op_type == WHOLE:
        x = op("Sub", x, mean(x))
    square = op("Pow", x, constant(2.0))
    size = op("Sqrt", op("Add", mean(square), constant(epsilon)))
    op("Mul", op("Div", x, size), node.input[1])
    if len(node.input) > 2 and node.input[2]:
        op("Add", written[-1].output[0], node.input[2])
    written[-1].output[0] = node.output[0]
    return written


# What exporters write beside the network: stack traces and names of modules, in metadata and doc strings.

Annotated = onnx.GraphProto | onnx.FunctionProto | onnx.NodeProto | onnx.ValueInfoProto | onnx.TensorProto


def drop_annotations(model: onnx.ModelProto) -> int:
    """Clear metadata and doc strings of everything inside the model; the bytes that they took.

    What describes the model to its users stays: its own `metadata_props`, and the doc strings of the model, of its
    graph, and of its inputs and outputs.
    """
    before: int = model.ByteSize()
    for message in (model.graph, *model.graph.input, *model.graph.output):
        message.ClearField("metadata_props")
    for message in _annotated(model):
        message.ClearField("metadata_props")
        message.ClearField("doc_string")
    for node in every_node(model):
        for attribute in node.attribute:
            attribute.ClearField("doc_string")
    after: int = model.ByteSize()
    return before - after


def _annotated(model: onnx.ModelProto) -> Iterator[Annotated]:
    yield from model.functions
    yield from every_node(model)
    for number, graph in enumerate(every_graph(model)):
        yield from graph.initializer
        yield from graph.value_info
        if number:  # the first one is the model's own
            yield from (graph, *graph.input, *graph.output)
    for function in model.functions:
        yield from function.value_info
    yield from _attribute_tensors(every_node(model))


def _attribute_tensors(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for attribute in (attribute for node in nodes for attribute in node.attribute):
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors


# Sizes of -1 or 0, and names such as "?", with which some exporters say that an axis may have any size.
#
# PaddlePaddle's and TensorFlow's write them. One "?" says nothing of another one.

NO_NAMES = frozenset(("None", "-1"))


def name_free_axes(model: onnx.ModelProto) -> None:
    """Give such axes of inputs a name of their own each, and leave those of other values open.

    Shape inference fills in what follows from the inputs.
    """
    taken = {dim.dim_param for value in model.graph.input for dim in _dims(value)}
    for value in model.graph.input:
        for axis, dim in enumerate(_dims(value)):
            if _is_free(dim):
                dim.dim_param = _unused(f"{value.name}_{axis}", taken)
    for graph in every_graph(model):
        for value in (*graph.input, *graph.value_info, *graph.output):
            for dim in filter(_is_free, _dims(value)):
                dim.Clear()


def _dims(value: onnx.ValueInfoProto) -> list[onnx.TensorShapeProto.Dimension]:
    return list(value.type.tensor_type.shape.dim)


def _is_free(dim: onnx.TensorShapeProto.Dimension) -> bool:
    if dim.HasField("dim_value"):
        return bool(dim.dim_value <= 0)
    check_text("an axis", dim.dim_param)
    return dim.HasField("dim_param") and (dim.dim_param in NO_NAMES or not re.search(r"\w", dim.dim_param))


def _unused(name: str, taken: Container[str]) -> str:
    while name in taken:
        name += "_"
    return name


# Model-local functions: small files can expand into graphs that hang or crash every library.

MAX_EXPANDED_NODES = 1_000_000
MAX_CALL_DEPTH = 100

Key = tuple[str, str, str]


def key_of(function: onnx.FunctionProto) -> Key:
    """What a node's domain, operator and overload must be to call the function."""
    return (function.domain, function.name, function.overload)


def check_functions(model: onnx.ModelProto) -> None:
    """Refuse functions that are defined twice, call themselves, nest too deep or expand too far."""
    keys = [key_of(function) for function in model.functions]
    for key, count in Counter(keys).items():
        if count > 1:
            raise ModelError(f"function {_show(key)} is defined {count} times; expected once")
    known = set(keys)
    calls = {key_of(function): _calls(function.node, known) for function in model.functions}
    sizes, depths = _expand(calls, {key_of(function): _count(function.node) for function in model.functions})
    roots = _calls(model.graph.node, known)
    total = _count(model.graph.node) + sum(sizes[key] * count for key, count in roots.items())
    if total > MAX_EXPANDED_NODES:
        raise ModelError(f"its functions expand to {total:.3g} nodes; at most {MAX_EXPANDED_NODES:,} are accepted")
    deepest = max(roots, key=depths.__getitem__, default=None)
    if deepest is not None and depths[deepest] > MAX_CALL_DEPTH:
        raise ModelError(f"function {_show(deepest)} nests {depths[deepest]} calls; at most {MAX_CALL_DEPTH} work")


def _expand(calls: dict[Key, Counter[Key]], own: dict[Key, int]) -> tuple[dict[Key, int], dict[Key, int]]:
    """Nodes after inlining and depth of calls, for each function."""
    try:
        order = tuple(TopologicalSorter(calls).static_order())
    except CycleError as error:
        raise ModelError(f"function {_show(error.args[1][0])} calls itself; ONNX allows no recursion") from error
    sizes: dict[Key, int] = {}
    depths: dict[Key, int] = {}
    for key in order:
        sizes[key] = own[key] + sum(sizes[callee] * count for callee, count in calls[key].items())
        depths[key] = 1 + max((depths[callee] for callee in calls[key]), default=0)
    return sizes, depths


def _calls(nodes: "list[onnx.NodeProto]", keys: set[Key]) -> Counter[Key]:
    called = ((node.domain, node.op_type, node.overload) for node in all_nodes(nodes))
    return Counter(key for key in called if key in keys)


def _count(nodes: "list[onnx.NodeProto]") -> int:
    return sum(1 for _ in all_nodes(nodes))


def _show(key: Key) -> str:
    return repr(":".join(part for part in key if part))


MIN_OPSET = 7  # lower ones broadcast by attributes
MAX_OPSET = 26  # what ONNX Runtime 1.31 loads

ONNX_DOMAINS = ("", "ai.onnx")
# What a lowered graph is made of itself.
CONVERSIONS = named(Trait.CONVERTS)
# Left as they are where all that they read is computed: no weights of a quantized network.
INTEGER = named(Trait.QUANTIZED)
# Operators of ONNX Runtime's own, left by its optimizer; those with such names are of quantized networks.
FUSED = "com.microsoft"
QUANTIZED = re.compile(r"^Q[A-Z]|[Qq]uantize|Integer|NBits|Bnb4|FpQ4|Float8")
# Layouts for one kind of processor.
BLOCKED = ("com.microsoft.nchwc", "com.ms.internal.nhwc")


def check_versions(model: onnx.ModelProto) -> None:
    """Refuse a model without an operator set version, or with one outside 7 to 26; functions alike.

    None is needed where every operator is of another domain, as in a pipeline of `ai.onnx.ml` alone.
    """
    version = _opset(model.opset_import)
    if version is None and not any(node.domain in ONNX_DOMAINS for node in every_node(model)):
        return
    if version is None:
        raise ModelError("names no operator set version for ai.onnx; export the model again")
    if not MIN_OPSET <= version <= MAX_OPSET:
        remedy = "onnx.version_converter" if version < MIN_OPSET else f"opset_version={MAX_OPSET} or lower at export"
        raise ModelError(f"uses opset {version}; {MIN_OPSET} to {MAX_OPSET} are accepted: use {remedy}")
    for function in model.functions:
        own = _opset(function.opset_import)
        if own is not None and own != version:
            raise ModelError(f"function {function.name!r} uses opset {own}, the model {version}; expected the same")


def check_operators(model: onnx.ModelProto) -> None:
    """Refuse quantized, custom and unknown operators, and layouts for one kind of processor."""
    version = _opset(model.opset_import) or 0
    versions = {entry.domain: entry.version for entry in model.opset_import} | dict.fromkeys(ONNX_DOMAINS, version)
    constants = _constants(model)
    functions = {key_of(function) for function in model.functions}
    unknown: dict[str, str] = {}
    for node in every_node(model):
        check_text("an operator", node.op_type, node.domain)
        if (node.domain, node.op_type, node.overload) in functions:
            continue
        if _is_quantized(node, constants):
            raise ModelError(f"is quantized already ({label(node)}); give the float model that it was made from")
        if node.domain in BLOCKED:
            raise ModelError(
                f"was laid out by ONNX Runtime for one kind of processor ({node.domain}: {label(node)}); "
                "give the model as it was exported, or optimized with ORT_ENABLE_EXTENDED at most"
            )
        if not _known(node, versions):
            unknown.setdefault(":".join(filter(None, (node.domain, node.op_type))), label(node))
    if unknown:
        _refuse_unknown(unknown, version)


def check_text(what: str, *names: str) -> None:
    """Refuse what protobuf gives as bytes, because it is no text."""
    for name in names:
        if not isinstance(name, str):
            raise ModelError(f"names {what} by what is not UTF-8 text ({name!r}): the file is damaged; export it again")


def _refuse_unknown(unknown: Mapping[str, str], version: int) -> None:
    first = next(iter(unknown.values()))
    own = [
        name for name in unknown if ":" not in name or name.startswith(("ai.onnx:", f"{CLASSICAL}:", "ai.onnx.preview"))
    ]
    if own:
        raise ModelError(
            f"has operators that ONNX opset {version} does not define: {_list(own)} (first: {first}); "
            "export the model again, with a newer opset"
        )
    raise ModelError(
        f"has custom operators: {_list(unknown)} (first: {first}), which ONNX Runtime has no kernels for; "
        "export the model without them, or cut it off before them"
    )


# Attributes that give a type, and what they can be.
TYPES = ("to", "dtype", "output_dtype", "output_datatype")
DATA_TYPES = frozenset(kind.value for kind in ir.DataType)
GROUP = "group"  # of convolutions


def check_attributes(model: onnx.ModelProto) -> None:
    """Refuse nodes that state an attribute twice, a type that there is not, no groups, or an attribute of no function.

    Of two attributes of one name, libraries differ in which one they take.
    """
    for node in every_node(model):
        names = Counter(attribute.name for attribute in node.attribute)
        if twice := [name for name, count in names.items() if count > 1]:
            raise ModelError(f"the {label(node)} has {twice[0]!r} twice; export the model again")
        for attribute in node.attribute:
            if node.domain in (*ONNX_DOMAINS, FUSED) and not _is_possible(attribute):
                raise ModelError(f"the {label(node)} has {attribute.name} = {attribute.i}; export the model again")
    for node in all_nodes(model.graph.node):
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                raise ModelError(
                    f"the {label(node)} takes {attribute.name!r} from the attributes of a function, and is in none; "
                    "export the model again"
                )


def _is_possible(attribute: onnx.AttributeProto) -> bool:
    """Whether what should be a type is one, and what should be a number of groups is not below 1."""
    if attribute.type != AttributeProto.INT or attribute.ref_attr_name:
        return True
    return attribute.i in DATA_TYPES if attribute.name in TYPES else attribute.name != GROUP or attribute.i >= 1


# The attributes of a Constant, of which it has one.
CONSTANT = {
    "value": AttributeProto.TENSOR,
    "sparse_value": AttributeProto.SPARSE_TENSOR,
    "value_float": AttributeProto.FLOAT,
    "value_floats": AttributeProto.FLOATS,
    "value_int": AttributeProto.INT,
    "value_ints": AttributeProto.INTS,
    "value_string": AttributeProto.STRING,
    "value_strings": AttributeProto.STRINGS,
}


def check_constants(model: onnx.ModelProto) -> None:
    """Refuse Constants without a value, which libraries trip over."""
    for node in every_node(model):
        if node.op_type == "Constant" and node.domain in ONNX_DOMAINS and [*map(_holds, node.attribute)] != [True]:
            raise ModelError(
                f"the {label(node)} has {_list(each.name for each in node.attribute) or 'no attributes'}; "
                f"expected one of {', '.join(CONSTANT)}, with its value: export the model again"
            )


def _holds(attribute: onnx.AttributeProto) -> bool:
    """Whether it is the value of a Constant."""
    is_there = attribute.name != "value" or attribute.HasField("t") or bool(attribute.ref_attr_name)
    return CONSTANT.get(attribute.name) == attribute.type and is_there


def _opset(imports: Iterable[onnx.OperatorSetIdProto]) -> int | None:
    return next((entry.version for entry in imports if entry.domain in ONNX_DOMAINS), None)


def _constants(model: onnx.ModelProto) -> set[str]:
    """Names of constants anywhere in the model."""
    result = {name for node in every_node(model) if node.op_type == "Constant" for name in node.output}
    return result.union(*({tensor.name for tensor in graph.initializer} for graph in every_graph(model)))


def _is_quantized(node: onnx.NodeProto, constants: set[str]) -> bool:
    if node.domain == FUSED:
        return QUANTIZED.search(node.op_type) is not None
    is_integer = node.op_type in INTEGER and not constants.isdisjoint(node.input)
    return is_integer or node.op_type in CONVERSIONS


def _known(node: onnx.NodeProto, versions: Mapping[str, int]) -> bool:
    """Whether one of ONNX's own domains has the operator; of ONNX Runtime's own, its loading says."""
    if node.domain not in (*ONNX_DOMAINS, CLASSICAL):
        return node.domain == FUSED
    domain = "" if node.domain in ONNX_DOMAINS else node.domain
    try:
        return not onnx.defs.get_schema(node.op_type, versions.get(node.domain, 0), domain).deprecated
    except (SchemaError, TypeError):  # of a version that is no 32-bit integer
        return False


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
