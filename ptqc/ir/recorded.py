"""Values that differ from run to run, or that decide sizes: while compiling they are inputs, recorded for each sample.

Operators that draw random numbers give others in every run, so nothing could be compared with anything. A length that
is computed by layers, as a voice computes how many frames it speaks, may be another one as soon as a weight is rounded,
and then outputs have no common shape. Of both kinds the value of one run of the float model is recorded: inside, X is
CastLike(X.recorded, X.computed), which is X.recorded. The node that computes X stays, and the delivered file reads it
again.
"""

import json
from collections import Counter
from collections.abc import Mapping

import onnx
import onnx_ir as ir
from onnx import helper, inliner

from ptqc.errors import ModelError
from ptqc.ir.nodes import bypass, has_long_vector, remove_dead, replace_node
from ptqc.ir.operators import OPERATORS, Trait, named
from ptqc.ir.protos import inferring, label, reads

# Of the graph's metadata.
KEY = "ptqc.recorded"
OPERATOR, SUFFIX = "CastLike", "recorded"
CAST = "Cast"
FIRST_OPSET = 15  # of CastLike
DRAWING, MEASURING, WEIGHTED = named(Trait.RANDOM), named(Trait.MEASURES), named(Trait.WEIGHTED)
CHOOSING = "Multinomial"  # for each row so many choices; nothing infers that
DRAWN_TYPES: Mapping[str, int] = {CHOOSING: onnx.TensorProto.INT32}
ONNX_DOMAINS = ("", "ai.onnx")
ROUNDING = named(Trait.ROUNDS)
INTEGERS = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
TABLES = named(Trait.LOOKS_UP)

# By the name of an input, the operator that computes its value in the delivered file.
Recorded = Mapping[str, str]


def record(model: onnx.ModelProto) -> dict[str, str]:
    """Let a model read values of these kinds from inputs; which.

    Raises ModelError for draws of unknown rank, and for an opset that cannot say so.
    """
    graph = model.graph
    opset = max((entry.version for entry in model.opset_import if entry.domain in ONNX_DOMAINS), default=0)
    draws = [node for node in graph.node if node.domain in ONNX_DOMAINS and node.op_type in DRAWING]
    if draws and opset < FIRST_OPSET:
        raise ModelError(
            f"the {label(draws[0])} needs opset {FIRST_OPSET} or more here, and the model has {opset}: export it with "
            f"opset_version={FIRST_OPSET}, or use onnx.version_converter"
        )
    sizes = _rounded_sizes(graph) if opset >= FIRST_OPSET else []
    if not draws and not sizes:
        return {}
    types = _types(model)
    for node in draws:
        if not types[node.output[0]].tensor_type.HasField("shape"):
            raise ModelError(
                f"the number of axes of {node.output[0]!r}, which a {node.op_type} node draws, is not known: add "
                "shapes of inner values with onnxruntime.tools.symbolic_shape_infer"
            )
    sizes = [node for node in sizes if types[node.output[0]].tensor_type.HasField("shape")]
    chosen = {node.output[0]: node.op_type for node in (*draws, *sizes)}
    inputs = _let_read(graph, dict.fromkeys(chosen, ""), types)
    return {inputs[name]: operator for name, operator in chosen.items()}


def _let_read(graph: onnx.GraphProto, values: Mapping[str, str], types: Mapping[str, onnx.TypeProto]) -> dict[str, str]:
    """Have values read from inputs; by name, that input. values: the same, with "" for inputs that are to be named."""
    taken, inputs, computed = _names(graph), dict[str, str](), dict[str, str]()
    for name, stated in values.items():
        inputs[name] = source = stated or _unused(f"{name}.{SUFFIX}", taken)
        computed[name] = _unused(f"{name}.computed", taken)
        taken |= {source, computed[name]}
        value = onnx.ValueInfoProto(name=source)
        value.type.CopyFrom(types[name])
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value") and not dim.dim_param:
                dim.dim_param = f"{source}_{axis}"
        graph.input.append(value)
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        for place, name in enumerate(node.output):
            if name in inputs:
                node.output[place] = computed[name]
                nodes.append(helper.make_node(OPERATOR, [inputs[name], computed[name]], [name]))
    del graph.node[:]
    graph.node.extend(nodes)
    return inputs


def _names(graph: onnx.GraphProto) -> set[str]:
    result = {name for node in graph.node for name in (*node.input, *node.output)}
    return result | {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}


def _unused(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _types(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """Types of inner values, as far as they can be inferred; drawn numbers are float32 unless they say otherwise."""
    infer = onnx.shape_inference.infer_shapes
    with inferring():
        # Data propagation follows each element of a vector, in functions as well.
        whole = inliner.inline_local_functions(model) if model.functions else model
        is_long = has_long_vector(ir.from_proto(infer(whole, data_prop=False)))
        graph = infer(model, data_prop=not is_long).graph
    types = {value.name: value.type for value in (*graph.value_info, *graph.output)}
    for node in model.graph.node:
        for name in (name for name in node.output if name not in types):
            kinds = [attribute.i for attribute in node.attribute if attribute.name in ("dtype", "to")]
            kind = kinds[0] if kinds else DRAWN_TYPES.get(node.op_type, onnx.TensorProto.FLOAT)
            types[name] = helper.make_tensor_type_proto(kind, [None, None] if node.op_type == CHOOSING else None)
    return types


def _rounded_sizes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes that round what layers compute to whole numbers, which then say how large something is."""
    makers = {name: node for node in graph.node for name in node.output if name}
    layered = _computed_by_layers(graph)
    sizes: dict[str, onnx.NodeProto] = {}
    waiting = [node.input[i] for node in graph.node for i in _sizes_of(node) if i < len(node.input)]
    seen = set[str]()
    while waiting:
        name = waiting.pop()
        node = makers.get(name)
        if name in seen or node is None or node.op_type in (*MEASURING, *DRAWING):
            continue
        seen.add(name)
        if _rounds(node) and not layered.isdisjoint(node.input[:1]):
            sizes[node.output[0]] = node
        else:
            waiting += reads(node)
    return [node for node in graph.node if node.output and node.output[0] in sizes]


def _sizes_of(node: onnx.NodeProto) -> tuple[int, ...]:
    """Inputs, by place, that say what shape the output has."""
    result = OPERATORS.get(node.op_type) if node.domain in ONNX_DOMAINS else None
    return () if result is None else result.parameters


def _rounds(node: onnx.NodeProto) -> bool:
    if node.op_type == CAST:
        return any(attribute.name == "to" and attribute.i in INTEGERS for attribute in node.attribute)
    return node.op_type in ROUNDING


def _computed_by_layers(graph: onnx.GraphProto) -> set[str]:
    """Values that depend on what layers compute, other than through its sizes."""
    tables = {tensor.name for tensor in graph.initializer}
    nodes = [node for node in graph.node if node.op_type not in MEASURING]
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in nodes:
        for name in reads(node):
            readers.setdefault(name, []).append(node)
    waiting = [
        n for n in nodes if n.op_type in WEIGHTED or (n.op_type in TABLES and not tables.isdisjoint(n.input[:1]))
    ]
    result = set[str]()
    while waiting:
        new = {name for name in waiting.pop().output if name} - result
        result |= new
        waiting += (node for name in new for node in readers.get(name, ()))
    return result


def remember(model: ir.Model, stand_ins: Recorded) -> None:
    """Keep with the model which inputs are recorded."""
    if stand_ins:
        model.graph.metadata_props[KEY] = json.dumps(stand_ins)


def remembered(model: ir.Model) -> dict[str, str]:
    """Which inputs are recorded; empty for a model without any."""
    stand_ins: dict[str, str] = json.loads(model.graph.metadata_props.get(KEY, "{}"))
    return stand_ins


def sources(model: ir.Model) -> dict[str, str]:
    """By recorded input, the value that it stands for, in a model that computes it anew."""
    stand_ins = remembered(model)
    pairs = ((source_of(node, stand_ins), str(node.outputs[0].name)) for node in model.graph)
    return {source: value for source, value in pairs if source is not None}


def source_of(node: ir.Node, stand_ins: Recorded) -> str | None:
    """The recorded input that a node hands on, behind a Cast where the model computes in another type; else None."""
    value = node.inputs[0] if node.op_type == OPERATOR else None
    while value is not None and (maker := value.producer()) is not None and maker.op_type == CAST:
        value = maker.inputs[0]
    return value.name if value is not None and value.is_graph_input() and value.name in stand_ins else None


def released(model: ir.Model) -> ir.Model:
    """A copy of the model that computes the values itself; the model itself where none is recorded."""
    stand_ins = remembered(model)
    if not stand_ins:
        return model
    copy = model.clone()
    for node in list(copy.graph):
        computed = node.inputs[1] if source_of(node, stand_ins) else None
        name, maker = node.outputs[0].name, None if computed is None else computed.producer()
        if computed is not None and not bypass(node, computed):
            replace_node(node, "Identity", [computed])
        elif computed is not None and maker is not None and maker.graph is copy.graph:
            computed.name = name
    remove_dead(copy)  # a Cast of what is recorded
    for value in [value for value in copy.graph.inputs if value.name in stand_ins]:
        copy.graph.inputs.remove(value)
    del copy.graph.metadata_props[KEY]
    return copy


def with_draws_fed(model: ir.Model) -> ir.Model:
    """A copy of the model that reads random numbers from inputs and computes sizes itself: what libraries are made of.

    The model itself where none is recorded.
    """
    stand_ins = remembered(model)
    if not stand_ins:
        return model
    copy, sizes = model.clone(), set[str]()
    for node in list(copy.graph):
        source = source_of(node, stand_ins)
        if source is None:
            continue
        is_drawn = stand_ins[source] in DRAWING
        read = node.inputs[0 if is_drawn else 1]
        if not is_drawn:
            sizes.add(source)
        if read is not None and not bypass(node, read):
            replace_node(node, "Identity", [read])
    for value in [value for value in copy.graph.inputs if value.name in sizes]:
        copy.graph.inputs.remove(value)
    del copy.graph.metadata_props[KEY]
    remove_dead(copy)
    return copy


def release(model: onnx.ModelProto, stand_ins: Recorded) -> tuple[onnx.ModelProto, dict[str, str]]:
    """A copy of a file that computes the values itself, and what each is called there."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph, values = copy.graph, dict[str, str]()
    makers = {name: node for node in graph.node for name in node.output}
    readers = Counter(name for node in graph.node for name in reads(node))
    gone = list[onnx.NodeProto]()
    for node in list(graph.node):
        casts, source = _source_in_file(node, makers) if node.op_type == OPERATOR else ([], "")
        if source not in stand_ins:
            continue
        computed, name = node.input[1], node.output[0]
        values[source] = name
        gone += [cast for cast in casts if readers[cast.output[0]] == 1]
        maker = makers.get(computed)
        if maker is None or readers[computed] > 1:
            node.CopyFrom(helper.make_node("Identity", [computed], [name]))
        else:
            maker.output[list(maker.output).index(computed)] = name
            gone.append(node)
    for node in gone:
        graph.node.remove(node)
    inputs = [value for value in graph.input if value.name not in stand_ins]
    del graph.input[:]
    graph.input.extend(inputs)
    return copy, values


def _source_in_file(node: onnx.NodeProto, makers: Mapping[str, onnx.NodeProto]) -> tuple[list[onnx.NodeProto], str]:
    """What a node hands on, and the Casts in front of it."""
    name, casts = node.input[0], list[onnx.NodeProto]()
    while name in makers and makers[name].op_type == CAST:
        casts.append(makers[name])
        name = casts[-1].input[0]
    return casts, name


def with_inputs(model: onnx.ModelProto, values: Mapping[str, str]) -> onnx.ModelProto:
    """A copy of a released file that reads the values from inputs again. values: what each is called in the file."""
    if not values:
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    types = _types(copy)
    _let_read(copy.graph, {name: source for source, name in values.items()}, types)
    return copy
