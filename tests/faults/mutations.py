"""Mutants of small models: what editors, exporters, bad disks and bad people make of them; always the same."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
from compiling import proto, residual, weight
from fault_networks import half, small, words
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from random_decoders import drawn

Rng = np.random.Generator
Mutation = Callable[[onnx.ModelProto, Rng], None]

MIXED = """g (float[N,4,8,8] x) => (float[N,6] y) {
    p = Pad(x, edges)
    a = Conv(p, w1)
    n = BatchNormalization(a, gain, shift, shift, gain)
    r = Relu(n)
    t = ConvTranspose<strides=[2,2]>(r, w2)
    v = AveragePool<kernel_shape=[3,3]>(t)
    s = Sigmoid(v)
    m = Mul(v, s)
    c = Concat<axis=1>(m, v)
    g = ReduceMean<axes=[2,3], keepdims=0>(c)
    y = MatMul(g, w3)
}"""
BRANCH = """g (float[N,8] x) => (float[N,8] y) {
    s = ReduceSum<keepdims=0>(x)
    z = Constant<value = float {0}>()
    c = Greater(s, z)
    h = Gemm(x, w)
    y = If(c) <
        then_branch = t () => (float[N,8] b) { b = Relu(h) },
        else_branch = e () => (float[N,8] d) { d = Neg(h) }
    >
}"""
LOOP = """g (float[N,8] x) => (float[N,8] y) {
    m = Constant<value = int64 {3}>()
    c = Constant<value = bool {1}>()
    h = Gemm(x, w)
    y = Loop(m, c, h) <body = b (int64 i, bool d, float[N,8] s) => (bool e, float[N,8] t) {
        e = Identity(d)
        t = Tanh(s)
    }>
}"""
FUNCTION = """<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[N,8] x) => (float[N,8] y) {
    h = f.layer(x, w)
    y = f.layer(h, w)
}
<domain: "f", opset_import: ["": 17]> layer (a, b) => (d) { c = MatMul(a, b) d = Relu(c) }"""
RECURRENT = "g (float[T,N,8] x) => (float[T,D,N,4] y) { y, last = GRU<hidden_size=4>(x, w, r) }"
RESIZED = """g (float[N,3,8,8] x) => (float[N,K] y, int64[N,K] i) {
    a = Conv<pads=[1,1,1,1]>(x, w)
    r = Resize(a, , f)
    p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)
    l = Flatten(p)
    y, i = TopK(l, k)
}"""


def _mixed() -> onnx.ModelProto:
    weights = {"w1": weight(4, 4, 3, 3), "w2": weight(4, 4, 2, 2, seed=1), "w3": weight(8, 6, seed=2)}
    normalization = {"gain": np.linspace(0.5, 2, 4, dtype=np.float32), "shift": np.linspace(-1, 1, 4, dtype=np.float32)}
    return proto(MIXED, 17, **weights, **normalization, edges=np.array([0, 0, 1, 1, 0, 0, 0, 1]))


def _function() -> onnx.ModelProto:
    model = onnx.parser.parse_model(FUNCTION)
    model.graph.initializer.append(numpy_helper.from_array(weight(8, 8), "w"))
    return model


SEEDS: Mapping[str, tuple[Callable[[], onnx.ModelProto], tuple[int, ...]]] = {
    "mixed": (_mixed, (4, 8, 8)),
    "words": (words, (32,)),
    "small": (small, (8, 4, 4)),
    "half": (half, (8,)),
    "residual": (residual, (3, 8, 8)),
    "branch": (lambda: proto(BRANCH, 17, w=weight(8, 8)), (8,)),
    "loop": (lambda: proto(LOOP, 17, w=weight(8, 8)), (8,)),
    "function": (_function, (8,)),
    "recurrent": (lambda: proto(RECURRENT, 17, w=weight(1, 12, 8), r=weight(1, 12, 4)), (1, 1, 8)),
    "resized": (
        lambda: proto(RESIZED, 17, w=weight(4, 3, 3, 3), f=np.array([1, 1, 2, 2], np.float32), k=np.array([5])),
        (3, 8, 8),
    ),
}
# Mutants from this number on are of a decoder, whose caches are packed.
DECODER, DECODERS = "decoder", 2000
NUMBERS = (-(1 << 63), -(1 << 31), -2, -1, 0, 1, 2, 3, 7, 1 << 16, 1 << 31, (1 << 63) - 1)
OPERATORS = sorted({schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain})


def _any(rng: Rng, items: Any) -> Any:
    result = list(items)
    return result[int(rng.integers(len(result)))] if result else None


def _node(model: onnx.ModelProto, rng: Rng) -> onnx.NodeProto:
    """A node of the graph, of a graph inside it, or of a function."""
    nodes = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    inner = [node for one in nodes for attribute in one.attribute for node in attribute.g.node]
    return _any(rng, [*nodes, *inner]) or onnx.NodeProto()


def _tensor(model: onnx.ModelProto, rng: Rng) -> onnx.TensorProto:
    constants = [a.t for node in model.graph.node for a in node.attribute if a.type == AttributeProto.TENSOR]
    return _any(rng, [*model.graph.initializer, *constants]) or TensorProto()


def _value(model: onnx.ModelProto, rng: Rng) -> onnx.ValueInfoProto:
    graph = model.graph
    return _any(rng, [*graph.input, *graph.output, *graph.value_info]) or onnx.ValueInfoProto()


def _names(model: onnx.ModelProto) -> list[str]:
    graph = model.graph
    made = [name for node in graph.node for name in node.output]
    return [*(v.name for v in graph.input), *(t.name for t in graph.initializer), *made, "", "nowhere"]


def drop_node(model: onnx.ModelProto, rng: Rng) -> None:
    if model.graph.node:
        del model.graph.node[int(rng.integers(len(model.graph.node)))]


def repeat_node(model: onnx.ModelProto, rng: Rng) -> None:
    model.graph.node.add().CopyFrom(_node(model, rng))


def shuffle_nodes(model: onnx.ModelProto, rng: Rng) -> None:
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(nodes[i] for i in rng.permutation(len(nodes)))


def other_operator(model: onnx.ModelProto, rng: Rng) -> None:
    _node(model, rng).op_type = _any(rng, OPERATORS)


def other_input(model: onnx.ModelProto, rng: Rng) -> None:
    node = _node(model, rng)
    if node.input:
        node.input[int(rng.integers(len(node.input)))] = _any(rng, _names(model))


def more_or_fewer_inputs(model: onnx.ModelProto, rng: Rng) -> None:
    node = _node(model, rng)
    if node.input and rng.random() < 0.5:
        del node.input[-1]
    else:
        node.input.append(_any(rng, _names(model)))


def exchanged_inputs(model: onnx.ModelProto, rng: Rng) -> None:
    node = _node(model, rng)
    node.input[:] = list(node.input)[::-1]


def other_output(model: onnx.ModelProto, rng: Rng) -> None:
    node = _node(model, rng)
    if node.output:
        node.output[int(rng.integers(len(node.output)))] = _any(rng, _names(model))


def drop_attribute(model: onnx.ModelProto, rng: Rng) -> None:
    node = _node(model, rng)
    if node.attribute:
        del node.attribute[int(rng.integers(len(node.attribute)))]


def other_number(model: onnx.ModelProto, rng: Rng) -> None:
    """An integer of an attribute."""
    attribute = _any(rng, _node(model, rng).attribute)
    if attribute is None:
        return
    if attribute.ints:
        attribute.ints[int(rng.integers(len(attribute.ints)))] = _any(rng, NUMBERS)
    else:
        attribute.i = _any(rng, NUMBERS)


def more_or_fewer_numbers(model: onnx.ModelProto, rng: Rng) -> None:
    attribute = _any(rng, _node(model, rng).attribute)
    if attribute is not None:
        attribute.ints[:] = [*attribute.ints, _any(rng, NUMBERS)] if rng.random() < 0.5 else attribute.ints[:-1]


def other_real(model: onnx.ModelProto, rng: Rng) -> None:
    attribute = _any(rng, _node(model, rng).attribute)
    if attribute is not None:
        attribute.f = _any(rng, (0.0, -1.0, 1e38, -1e38, float("nan"), float("inf"), 1e-40))


def attribute_of_another_type(model: onnx.ModelProto, rng: Rng) -> None:
    attribute = _any(rng, _node(model, rng).attribute)
    if attribute is not None:
        attribute.type = int(rng.integers(0, 15))


def added_attribute(model: onnx.ModelProto, rng: Rng) -> None:
    names = ("axis", "axes", "pads", "strides", "group", "to", "perm", "keepdims", "kernel_shape", "auto_pad", "mode")
    value = _any(rng, (1, -1, [1, 1], [0], 1.5, "SAME_UPPER"))
    _node(model, rng).attribute.append(helper.make_attribute(_any(rng, names), value))


def other_dimension(model: onnx.ModelProto, rng: Rng) -> None:
    tensor = _tensor(model, rng)
    if tensor.dims:
        tensor.dims[int(rng.integers(len(tensor.dims)))] = _any(rng, NUMBERS)


def turned_tensor(model: onnx.ModelProto, rng: Rng) -> None:
    """The dimensions in another order, or another rank."""
    tensor = _tensor(model, rng)
    dims = list(tensor.dims)
    tensor.dims[:] = _any(rng, (dims[::-1], [1, *dims], [int(np.prod(dims))], dims[1:]))


def other_type(model: onnx.ModelProto, rng: Rng) -> None:
    _tensor(model, rng).data_type = int(rng.integers(0, 26))


def cast_tensor(model: onnx.ModelProto, rng: Rng) -> None:
    """Another type with data that fit it."""
    tensor = _tensor(model, rng)
    try:
        array = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError):
        return
    kinds = (np.float16, np.float64, np.int64, np.int32, np.uint8, np.int8, bool)
    with np.errstate(all="ignore"):
        tensor.CopyFrom(numpy_helper.from_array(array.astype(_any(rng, kinds)), tensor.name))


def damaged_data(model: onnx.ModelProto, rng: Rng) -> None:
    tensor = _tensor(model, rng)
    data = bytearray(tensor.raw_data)
    for place in rng.integers(0, len(data) or 1, 3) if data else ():
        data[place] ^= 1 << int(rng.integers(8))
    tensor.raw_data = bytes(data)


def cut_data(model: onnx.ModelProto, rng: Rng) -> None:
    tensor = _tensor(model, rng)
    tensor.raw_data = tensor.raw_data[: int(rng.integers(len(tensor.raw_data) + 1))]


def extreme_value(model: onnx.ModelProto, rng: Rng) -> None:
    tensor = _tensor(model, rng)
    try:
        array = numpy_helper.to_array(tensor).copy()
    except (ValueError, TypeError, KeyError):
        return
    extremes = NUMBERS if array.dtype.kind in "iu" else (np.nan, np.inf, -np.inf, 0, 3e38, -3e38, 1e-42)
    if array.size and array.dtype.kind in "iuf":
        with np.errstate(all="ignore"):
            array.flat[int(rng.integers(array.size))] = np.array(_any(rng, extremes)).astype(array.dtype)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def drop_tensor(model: onnx.ModelProto, rng: Rng) -> None:
    if model.graph.initializer:
        del model.graph.initializer[int(rng.integers(len(model.graph.initializer)))]


def repeat_tensor(model: onnx.ModelProto, rng: Rng) -> None:
    model.graph.initializer.add().CopyFrom(_tensor(model, rng))


def outside_tensor(model: onnx.ModelProto, rng: Rng) -> None:
    tensor = _tensor(model, rng)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", _any(rng, ("../c.npz", "c.npz", "/dev/zero", ""))), ("offset", "-4")):
        tensor.external_data.add(key=key, value=value)


def other_shape(model: onnx.ModelProto, rng: Rng) -> None:
    """What an input, an output or an inner value is declared as."""
    shape = _value(model, rng).type.tensor_type.shape
    if not shape.dim or rng.random() < 0.2:
        shape.dim.add().dim_param = "M"
    dim = _any(rng, shape.dim)
    dim.dim_value = _any(rng, NUMBERS)


def other_interface_type(model: onnx.ModelProto, rng: Rng) -> None:
    _value(model, rng).type.tensor_type.elem_type = int(rng.integers(0, 26))


def no_type(model: onnx.ModelProto, rng: Rng) -> None:
    _value(model, rng).ClearField(_any(rng, ("type", "name")))


def more_or_fewer_outputs(model: onnx.ModelProto, rng: Rng) -> None:
    if model.graph.output and rng.random() < 0.4:
        del model.graph.output[-1]
    else:
        model.graph.output.append(onnx.ValueInfoProto(name=_any(rng, _names(model))))


def more_or_fewer_model_inputs(model: onnx.ModelProto, rng: Rng) -> None:
    if model.graph.input and rng.random() < 0.4:
        del model.graph.input[-1]
    else:
        name = _any(rng, _names(model))
        model.graph.input.append(helper.make_tensor_value_info(name, int(rng.integers(1, 12)), [1, 8]))


def wrong_inner_value(model: onnx.ModelProto, rng: Rng) -> None:
    name = _any(rng, _names(model))
    sizes = [int(_any(rng, (0, 1, 2, 8))) for _ in range(int(rng.integers(5)))]
    model.graph.value_info.append(helper.make_tensor_value_info(name, int(rng.integers(1, 12)), sizes))


def other_version(model: onnx.ModelProto, rng: Rng) -> None:
    if rng.random() < 0.3:
        model.ir_version = int(_any(rng, (0, 3, 8, 13, 99)))
    elif model.opset_import:
        _any(rng, model.opset_import).version = int(_any(rng, (-1, 0, 7, 13, 14, 19, 21, 24, 26, 999)))


def other_domain(model: onnx.ModelProto, rng: Rng) -> None:
    _node(model, rng).domain = _any(rng, ("ai.onnx", "com.microsoft", "f", "ai.onnx.ml", "../x"))


def odd_names(model: onnx.ModelProto, rng: Rng) -> None:
    old = _any(rng, _names(model))
    new = _any(rng, ("../../a", "new\nline", "\u202e", "a" * 5000, " ", "\x00", "y", "x"))
    for node in model.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
        node.output[:] = [new if name == old else name for name in node.output]
    for one in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        one.name = new if one.name == old else one.name


MUTATIONS: tuple[Mutation, ...] = (
    *(drop_node, repeat_node, shuffle_nodes, other_operator, other_input, more_or_fewer_inputs, exchanged_inputs),
    *(other_output, drop_attribute, other_number, more_or_fewer_numbers, other_real, attribute_of_another_type),
    *(added_attribute, other_dimension, turned_tensor, other_type, cast_tensor, damaged_data, cut_data),
    *(extreme_value, drop_tensor, repeat_tensor, outside_tensor, other_shape, other_interface_type, no_type),
    *(more_or_fewer_outputs, more_or_fewer_model_inputs, wrong_inner_value, other_version, other_domain, odd_names),
)


def mutant(number: int) -> tuple[str, bytes]:
    """The bytes of a mutant, and which seed it is of: mostly one mutation, one file in ten with damaged bytes."""
    rng = np.random.default_rng((4711, number))
    name = DECODER if number >= DECODERS else list(SEEDS)[number % len(SEEDS)]
    model = ir.to_proto(drawn(number % 3).before) if name == DECODER else SEEDS[name][0]()
    for _ in range(_any(rng, (1, 1, 1, 2, 3))):
        _any(rng, MUTATIONS)(model, rng)
    data = bytearray(model.SerializeToString())
    if rng.random() < 0.1:
        for place in rng.integers(0, len(data), int(rng.integers(1, 5))):
            data[place] ^= 1 << int(rng.integers(8))
    return name, bytes(data)
