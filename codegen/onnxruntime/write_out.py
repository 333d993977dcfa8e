"""A packed file with its constants written out: weights as the codes of 8 bits, or the real numbers, that kernels read.

What depends on constants alone is computed by ONNX Runtime, without optimizations, as it does itself whenever it loads
the packed file, and becomes an initializer. Everything else stays: DequantizeLinear, of which it makes integer kernels,
tables of which rows are picked, and weights that operators read packed. So the file needs no operator and no release of
ONNX Runtime that the packed one does not need, and nothing in it depends on a processor.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx

from ptqc.codegen.onnxruntime.unpack import inlined
from ptqc.execution.onnxruntime import Runner, session_options
from ptqc.ir.external import SpilledTensors
from ptqc.ir.operators import Trait, named
from ptqc.ir.protos import reads, subgraphs

DRAWING = named(Trait.RANDOM)
# Without it ONNX Runtime finds no integer kernels.
LEFT_OUT = "DequantizeLinear"
ARRAYS = frozenset(
    f"tensor({name})"
    for name in (
        *("bool", "float", "float16", "double", "int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64"),
    )
)


def write_out(packed: onnx.ModelProto, spilled: SpilledTensors) -> onnx.ModelProto:
    """Copy a packed file, with an initializer in the place of every value that depends on constants alone.

    Values that a node of the file made keep their names. spilled: takes the large initializers, to which the copy
    refers. Raises ModelError where ONNX Runtime cannot compute one.
    """
    constants = _constants(packed.graph)
    model = inlined(packed, lambda call: constants.issuperset(call.input))
    graph = model.graph
    fixed = list(_fixed_nodes(graph))
    wanted = _read_by_others(graph, fixed)
    computed, written = set[int](), list[onnx.TensorProto]()
    for group in _connected(fixed):
        names = [name for node in group for name in node.output if name in wanted]
        arrays = _compute(model, group, names) if names else {}
        if arrays is not None:
            computed.update(map(id, group))
            written += (spilled.make(name, array) for name, array in arrays.items())
    remaining = [node for node in graph.node if id(node) not in computed]
    read = {name for node in remaining for name in reads(node)} | {value.name for value in graph.output}
    initializers = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(remaining)
    graph.initializer.extend([*initializers, *written])
    return model


def _constants(graph: onnx.GraphProto) -> set[str]:
    """Initializers that no input of the graph replaces, and "", which stands for an input that a node does without."""
    return {tensor.name for tensor in graph.initializer} - {value.name for value in graph.input} | {""}


def _fixed_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Nodes whose outputs depend on constants alone and can be initializers, in order."""
    constants, outputs = _constants(graph), {value.name for value in graph.output}
    for node in graph.node:
        is_plain = not node.domain and not subgraphs(node) and node.op_type not in DRAWING and node.op_type != LEFT_OUT
        if is_plain and constants.issuperset(node.input) and outputs.isdisjoint(node.output):
            constants.update(node.output)
            yield node


def _read_by_others(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> set[str]:
    """Names that any other node reads, in its subgraphs as well."""
    own = set(map(id, nodes))
    return {name for node in graph.node if id(node) not in own for name in reads(node)}


def _connected(nodes: Sequence[onnx.NodeProto]) -> list[list[onnx.NodeProto]]:
    """Groups of nodes that read nothing from each other, each in order: what one layer is unpacked with is a group.

    Computed one by one, so that memory holds what the largest takes on the way, not all of them together.
    """
    group_of = dict[str, list[onnx.NodeProto]]()
    groups = dict[int, list[onnx.NodeProto]]()
    for node in nodes:
        before = {id(group_of[name]): group_of[name] for name in node.input if name in group_of}
        joined = [*(one for group in before.values() for one in group), node]
        for number in before:
            del groups[number]
        groups[id(joined)] = joined
        group_of.update({name: joined for one in joined for name in one.output})
    return list(groups.values())


def _compute(
    model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], names: Sequence[str]
) -> Mapping[str, np.ndarray] | None:
    """Values by name; None where one of them is of a type that no array has, such as bfloat16."""
    read = {name for node in nodes for name in node.input}
    part = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    part.graph.name = "constants"
    part.graph.node.extend(nodes)
    part.graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in read)
    part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    runner = Runner(part, options=session_options(optimize=False), lean=True)
    if not ARRAYS.issuperset(value.type for value in runner.session.get_outputs()):
        return None
    return runner.run({}, names)
