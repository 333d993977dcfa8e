"""Views of a model by role: the layers with their weights, and the constants that may be stored packed."""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from ptqc.formats import Format
from ptqc.formats.planes import MULTIPLE, planes_of
from ptqc.ir.modules import remembered
from ptqc.ir.nodes import constant, initial, input_of, integer, integers, rank, static, text
from ptqc.ir.operators import Trait, is_float, named, quantized_output

# Tables of which only rows are read: embeddings, that a Gather picks rows of at places that vary.

# Tables of fewer numbers are unpacked when the file is loaded: they take less memory than the operators are worth.
LARGE = 2**18


def pickers(value: ir.Value) -> tuple[ir.Node, ...]:
    """The nodes that pick rows of a table, where nothing else reads it; none where something does."""
    nodes = tuple(value.consumers())
    is_picked = not value.is_graph_output() and all(picks_rows(node, value) for node in nodes)
    return nodes if is_picked else ()


def picks_rows(node: ir.Node, table: ir.Value) -> bool:
    """Whether a node picks rows of the table at places that vary, in the graph that has the table."""
    if node.op_type != "Gather" or node.domain or node.inputs[0] is not table or integer(node, "axis", 0) != 0:
        return False
    places = node.inputs[1]
    return constant(places) is None and bool(rank(places)) and node.graph is table.graph


def is_by_row(form: Format, shape: tuple[int, ...]) -> bool:
    """Whether each row of a table in this format takes whole bytes of each plane, and can be picked as it is stored."""
    if len(shape) != 2 or not (form.is_scaled and (form.is_regular or form.by_row)):
        return False
    width = shape[1]
    has_planes = bool(planes_of(form.bits)) and not form.by_row
    return width % form.group == 0 and not (has_planes and width // form.group % MULTIPLE)


def stays_packed(form: Format, shape: tuple[int, ...]) -> bool:
    """Whether a table that only rows are picked of stays as it is stored when the file is loaded."""
    return is_by_row(form, shape) and is_large_table(shape)


def is_large_table(shape: tuple[int, ...]) -> bool:
    """Whether a table of this shape should stay packed where rows of it are picked."""
    return len(shape) == 2 and shape[0] * shape[1] >= LARGE


LAYERS = named(Trait.LAYER)
NOT_NEGATIVE = named(Trait.NOT_NEGATIVE)

MATRIX = 2  # axes
# Of a number of a bias; and of those of all layers that share a weight, at most, for each number of the weight.
BIAS_BITS, BIAS_SHARE = 32, 1
# Constants smaller than this cost more graph text than packing them saves.
SMALLEST_TABLE = 256


@dataclass(frozen=True)
class Reading:
    """What layers multiply their weights with: an input (by its value's name) in windows, or row by row.

    width: products of one output. Layers of equal readings see the same columns.
    """

    input: str
    width: int
    kernel: tuple[int, ...] = ()
    groups: int = 1
    strides: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()


@dataclass(frozen=True)
class Layer:
    """A linear node with a constant weight. All names are value names; `name` is the node's output and the stable key.

    channel_axis: the weight axis of output channels. groups, strides, pads (begins, then ends), dilations: of a Conv.
    output: that of the node, or what follows it when a Relu or Clip(0, …) is absorbed. keeps_sign: whether its weights,
    none of which is negative, must stay so: a logarithm or a root is taken of its sums. keeps_bias: whether its bias
    stays as it is, since so many layers share its weight that a bias for each of them would take many bytes. module: of
    PyTorch's that computes it, where the exporter tells.
    """

    name: str
    op_type: str
    input: str
    weight: str
    bias: str | None
    output: str
    shape: tuple[int, ...]
    channel_axis: int
    groups: int = 1
    strides: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    keeps_sign: bool = False
    keeps_bias: bool = False
    module: str = field(default="", compare=False)

    @property
    def channels(self) -> int:
        """Output channels."""
        return self.shape[self.channel_axis]

    @property
    def width(self) -> int:
        """Inputs per group · taps: products of one output."""
        return math.prod(self.shape) // self.channels

    @property
    def taps(self) -> int:
        """Products of one output with one input channel."""
        return math.prod(self.kernel)

    @property
    def is_convolution(self) -> bool:
        """Whether it slides a window; else it multiplies rows."""
        return self.op_type == "Conv"

    @property
    def is_depthwise(self) -> bool:
        """Whether every channel has a window of its own, and gives one channel."""
        return self.is_convolution and self.groups == self.channels and self.shape[1] == 1

    @property
    def takes_bias(self) -> bool:
        """Whether its operator adds a bias; MatMul does not."""
        return self.op_type != "MatMul"

    @property
    def reads_pairs(self) -> bool:
        """Whether it may multiply two neighbouring inputs of a pixel at once."""
        return self.is_convolution and self.shape[1] % 2 == 0

    @property
    def is_corrected(self) -> bool:
        """Whether its bias makes up for the mean error of its weights."""
        return self.takes_bias and not self.keeps_sign and not self.keeps_bias

    @property
    def may_have_bias(self) -> bool:
        """Whether it has a bias, or gets one that makes up for the mean error of its weights."""
        return self.takes_bias and (self.bias is not None or self.is_corrected)

    @property
    def kernel(self) -> tuple[int, ...]:
        """Spatial kernel shape; () for products."""
        return self.shape[2:] if self.is_convolution else ()

    @property
    def reading(self) -> Reading:
        """What it multiplies its weight with."""
        return Reading(self.input, self.width, self.kernel, self.groups, self.strides, self.pads, self.dilations)

    def matrix(self, weight: np.ndarray) -> np.ndarray:
        """Weight as (groups, outputs per group, inputs per group · taps); a view where possible."""
        if self.channel_axis == 1 and not self.is_convolution:
            weight = weight.T
        return weight.reshape(self.groups, self.channels // self.groups, -1)

    def tensor(self, matrix: np.ndarray) -> np.ndarray:
        """Inverse of `matrix`."""
        if self.channel_axis == 1 and not self.is_convolution:
            return np.ascontiguousarray(matrix.reshape(self.channels, -1).T)
        return matrix.reshape(self.shape)

    def over_output(self, vector: np.ndarray) -> np.ndarray:
        """A per-channel vector, shaped to broadcast against the layer's output."""
        return vector.reshape(1, -1, *(1,) * len(self.kernel)) if self.is_convolution else vector


@dataclass(frozen=True)
class Weight:
    """A constant that may be stored in few bits, with everything that uses it.

    layers: the layers that use it as their weight (empty for a table: an embedding, a recurrent matrix, a mask).
    channel_axis: the axis that scales run along. inner: of a table the layers in subgraphs that use it as their weight.
    table: a constant with the same numbers, a row for each channel, of which rows are picked: a tied embedding.
    module: of a table, as of `Layer`.
    """

    name: str
    shape: tuple[int, ...]
    channel_axis: int
    layers: tuple[Layer, ...]
    inner: tuple[Layer, ...] = ()
    table: str | None = None
    module: str = field(default="", compare=False)

    @property
    def fitted_to(self) -> tuple[Layer, ...]:
        """The layers whose inputs its rounding is fitted to; empty where each element is rounded for itself."""
        return self.layers or self.inner

    @property
    def readings(self) -> tuple[Reading, ...]:
        """What it is multiplied with, by all layers that its rounding is fitted to."""
        return tuple(layer.reading for layer in self.fitted_to)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape))


def all_nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    """Nodes of the graph and of all subgraphs, in order."""
    yield from ir.traversal.RecursiveGraphIterator(graph)


def draws(layers: Sequence[Layer]) -> dict[str, int]:
    """For each layer, by name, the number of the first one that reads the same: what they see is drawn once."""
    first: dict[Reading, int] = {}
    return {layer.name: first.setdefault(layer.reading, number) for number, layer in enumerate(layers)}


def find_layers(model: ir.Model) -> list[Layer]:
    """The layers of the main graph in execution order."""
    rooted = _rooted(model.graph)
    result = [layer for node in model.graph if (layer := _as_layer(node, rooted)) is not None]
    shared = Counter(layer.weight for layer in result)
    modules = remembered(model)
    return [
        replace(layer, keeps_bias=_keeps_bias(layer, shared[layer.weight]), module=modules.get(layer.name, ""))
        for layer in result
    ]


def _keeps_bias(layer: Layer, sharing: int) -> bool:
    """Whether biases for all layers that share a weight would take more than BIAS_SHARE bits for each number of it."""
    return sharing > 1 and sharing * layer.channels * BIAS_BITS > BIAS_SHARE * math.prod(layer.shape)


def find_inner_layers(model: ir.Model) -> dict[ir.Node, Layer]:
    """The layers in subgraphs whose weight is in the main graph, by node.

    Names of outputs and inputs are followed by the number of the subgraph: two branches of an If may use one twice.
    """
    inner_layers = {}
    for number, graph in enumerate(model.graph.subgraphs()):
        rooted = _rooted(graph)
        for node in graph:
            layer = _as_layer(node, rooted)
            if layer is not None and layer.weight in model.graph.initializers:
                name, read = (f"{value} in graph {number}" for value in (layer.name, layer.input))
                inner_layers[node] = replace(layer, name=name, input=read)
    return inner_layers


def _rooted(graph: ir.Graph) -> set[str]:
    """All that logarithms and roots are made of since the last layers."""
    result = set[str]()
    for node in reversed(graph):
        is_inside = any(output.name in result for output in node.outputs) and node.op_type not in LAYERS
        if node.op_type in NOT_NEGATIVE or is_inside:
            result.update(str(value.name) for value in node.inputs if value is not None)
    return result


def why_not_a_layer(node: ir.Node) -> str:
    """The reason a Conv, Gemm or MatMul is not treated as a layer."""
    weight, bias = constant(node.inputs[1]), input_of(node, 2)
    if weight is None:
        return "its second operand is computed, not constant"
    if weight.dtype != np.float32:
        return f"its weight is {weight.dtype}"
    if bias is not None and constant(bias) is None:
        return "its bias is computed, not constant"
    if node.op_type == "MatMul" and weight.ndim < MATRIX:
        return "its weight is a vector, and integer kernels multiply by matrices"
    if node.op_type == "MatMul" and weight.ndim > MATRIX:
        return f"its weight is a stack of {math.prod(weight.shape[:-MATRIX])} matrices, and integer kernels take one"
    if constant(node.inputs[0]) is not None:
        return "its input is constant"
    return "its attributes have no integer kernel"


def _as_layer(node: ir.Node, rooted: Collection[str]) -> Layer | None:
    if node.op_type not in LAYERS or node.domain or len(node.inputs) < 2 or node.inputs[0] is None:
        return None
    weight = constant(node.inputs[1])
    if weight is None or weight.dtype != np.float32 or constant(node.inputs[0]) is not None:
        return None
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None and constant(bias) is None:
        return None
    axis = _channel_axis(node, weight, bias)
    if axis is None:
        return None
    layer = Layer(
        name=str(node.outputs[0].name),
        op_type=node.op_type,
        input=str(node.inputs[0].name),
        weight=str(node.inputs[1].name),  # type: ignore[union-attr]
        bias=None if bias is None else str(bias.name),
        output=str(quantized_output(node).name),
        shape=tuple(int(d) for d in weight.shape),
        channel_axis=axis,
        keeps_sign=node.outputs[0].name in rooted and all(_is_positive(value) for value in node.inputs[1:]),
    )
    return _with_window(layer, node) if layer.is_convolution else layer


def _is_positive(value: ir.Value | None) -> bool:
    """Whether no element of a constant is negative; of one left out, too."""
    array = constant(value)
    return value is None or (array is not None and bool((array >= 0).all()))


def _channel_axis(node: ir.Node, weight: np.ndarray, bias: ir.Value | None) -> int | None:
    if node.op_type == "Conv":
        return 0 if text(node, "auto_pad", "NOTSET") == "NOTSET" else None
    if weight.ndim != 2:
        return None
    if node.op_type == "MatMul":
        return 1
    scaled = any(a is not None and a.as_float() != 1.0 for a in map(node.attributes.get, ("alpha", "beta")))
    axis = 0 if integer(node, "transB", 0) else 1
    values = constant(bias)
    vector_bias = values is None or values.size == weight.shape[axis] == (values.shape or (1,))[-1]
    return axis if not scaled and not integer(node, "transA", 0) and vector_bias else None


def _with_window(layer: Layer, node: ir.Node) -> Layer:
    rank = len(layer.shape) - 2
    return replace(
        layer,
        groups=integer(node, "group", 1),
        strides=tuple(integers(node, "strides", [1] * rank)),
        pads=tuple(integers(node, "pads", [0] * (2 * rank))),
        dilations=tuple(integers(node, "dilations", [1] * rank)),
    )


def find_weights(model: ir.Model, layers: Sequence[Layer]) -> list[Weight]:
    """Every float constant worth packing: the layers' weights first, then other constants of SMALLEST_TABLE or more."""
    users: dict[str, list[Layer]] = {}
    for layer in layers:
        users.setdefault(layer.weight, []).append(layer)
    weights = [_layer_weight(model, name, group) for name, group in users.items()]
    weights = [replace(weight, table=table) for weight, table in zip(weights, _tables(model, weights), strict=True)]
    taken = set(users) | {layer.bias for layer in layers} | {weight.table for weight in weights}
    used = {str(v.name) for node in all_nodes(model.graph) for v in node.inputs if v is not None}
    modules, inner = remembered(model), dict[str, list[Layer]]()
    for layer in find_inner_layers(model).values():
        inner.setdefault(layer.weight, []).append(layer)
    for name, value in model.graph.initializers.items():
        array = value.const_value
        if name in taken or name not in used or array is None or not is_float(value) or array.size < SMALLEST_TABLE:
            continue
        readers = {modules.get(str(node.outputs[0].name), "") for node in value.consumers()}
        module = readers.pop() if len(readers) == 1 else ""
        weights.append(replace(_table(model, name, tuple(array.numpy().shape), inner.get(name, [])), module=module))
    return weights


def _tables(model: ir.Model, weights: Sequence[Weight]) -> Iterator[str | None]:
    """For each weight of layers the table with its numbers, if there is one that only rows are picked of."""
    left = {name: value for name, value in model.graph.initializers.items() if rank(value) == MATRIX and pickers(value)}
    for weight in weights:
        result = next((name for name, value in left.items() if _is_table_of(model, weight, value)), None)
        left.pop(result or "", None)
        yield result


def _is_table_of(model: ir.Model, weight: Weight, table: ir.Value) -> bool:
    layer = weight.layers[0] if weight.layers else None
    if layer is None or layer.is_convolution or static(table) != (layer.channels, layer.width):
        return False
    rows = constant(table)
    return rows is not None and np.array_equal(layer.matrix(initial(model, weight.name))[0], rows)


def is_tied(model: ir.Model, layer: Layer) -> bool:
    """Whether the layer's weight has the numbers of a table."""
    return any(weight.table is not None for weight in find_weights(model, [layer]) if weight.layers)


def _layer_weight(model: ir.Model, name: str, layers: list[Layer]) -> Weight:
    """A weight of layers; one that other nodes use too, or that is used in different roles, is a table."""
    shape, axes = layers[0].shape, {layer.channel_axis for layer in layers}
    axis = axes.pop() if len(axes) == 1 else _table_axis(shape)
    return Weight(name, shape, axis, tuple(layers) if _has_one_role(model, name, layers) else ())


def _table(model: ir.Model, name: str, shape: tuple[int, ...], inner: list[Layer]) -> Weight:
    """A table; inner: the layers in subgraphs that use it as their weight."""
    if not inner or not _has_one_role(model, name, inner):
        return Weight(name, shape, _table_axis(shape), ())
    return Weight(name, shape, inner[0].channel_axis, (), tuple(inner))


def _has_one_role(model: ir.Model, name: str, layers: list[Layer]) -> bool:
    """Whether all that use a constant are these layers, and in the same way."""
    are_all = len(model.graph.initializers[name].uses()) == len(layers)
    return are_all and len({(x.op_type, x.channel_axis, x.groups) for x in layers}) == 1


def _table_axis(shape: tuple[int, ...]) -> int:
    """The axis of a table that gets own scales: the longest but the last, so that rows are at least 8 long."""
    axes = [axis for axis in range(len(shape) - 1) if np.prod(shape) // shape[axis] >= 8]
    return max(axes, key=lambda axis: shape[axis], default=0)


# Caches of keys and values: inputs of a decoder that one of its outputs continues.

# Ways to name what is continued, and what continues it, the longest first.
NAMES = (("past_key_values", "present"), ("past", "present"))
AXES = 4


@dataclass(frozen=True)
class Cache:
    """Keys or values of one layer: (texts, heads, places, channels), handed on from `past` to `present`."""

    past: ir.Value
    present: ir.Value

    @property
    def name(self) -> str:
        """That of the input."""
        return str(self.past.name)

    @property
    def channels(self) -> int | None:
        """Of one head; None where the model leaves them open."""
        size = None if self.past.shape is None else self.past.shape[-1]
        return size if isinstance(size, int) else None


def find_caches(model: ir.Model) -> list[Cache]:
    """All caches of a model, in the order of its inputs."""
    return list(_caches(model.graph.inputs, model.graph.outputs))


def _caches(inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> Iterator[Cache]:
    by_name = {str(value.name): value for value in outputs}
    for past in inputs:
        names = (str(past.name).replace(*pair) for pair in NAMES)
        present = next((by_name[name] for name in names if name != past.name and name in by_name), None)
        if present is not None and present.dtype == past.dtype and _rank(past) == _rank(present) == AXES:
            yield Cache(past, present)


def _rank(value: ir.Value) -> int | None:
    return None if value.shape is None else value.shape.rank()


# Names by which people know layers: exporters number what operators give, and keep the names of modules in weights.

# `blocks.5.c1.weight`, `encoder/dense/kernel:0`
OF_MODULE = re.compile(r"(?P<module>.+)[./](weight|kernel)s?(:\d+)?", re.IGNORECASE)
# Names with a path tell the module themselves, as `/blocks.5/c1/Conv_output_0`.
PATH = re.compile(r"[./:]")


def module_labels(weights: Sequence[Weight]) -> Mapping[str, str]:
    """The module of each layer that has a weight for itself, where its own name does not tell: by that name.

    Of several layers in one module, those keep their names of which only weights tell the module. Tables have their
    own names behind the module.
    """
    modules, exported = dict[str, str](), set[str]()
    for layer in (weight.layers[0] for weight in weights if len(weight.layers) == 1):
        match = OF_MODULE.fullmatch(layer.weight)
        if PATH.search(layer.name) or not (match or layer.module):
            continue
        modules[layer.name] = match["module"] if match else layer.module
        if layer.module:
            exported.add(layer.name)
    times, labels = Counter(modules.values()), dict[str, str]()
    for name, module in modules.items():
        if times[module] == 1:
            labels[name] = module
        elif name in exported:
            labels[name] = f"{module}.{name}"
    tables = (weight for weight in weights if weight.module and not PATH.search(weight.name))
    return labels | {table.name: f"{table.module}.{table.name}" for table in tables}


# Values through which the whole of a network passes.


def bottlenecks(model: ir.Model) -> Iterator[str]:
    """Names of the values that, once they are there, are all that is still read, in order; constants aside."""
    position = {node: index for index, node in enumerate(model.graph)}
    end = len(position)

    def last_read(value: ir.Value) -> int:
        uses = [position.get(use.node, end) for use in value.uses()]
        return end if value.is_graph_output() else max(uses, default=-1)

    alive = {value: last_read(value) for value in model.graph.inputs if not value.is_initializer()}
    for node, index in position.items():
        if node.op_type != "Constant":
            alive |= {value: last_read(value) for value in node.outputs}
        alive = {value: last for value, last in alive.items() if last > index}
        if len(alive) == 1:
            yield str(next(iter(alive)).name)
