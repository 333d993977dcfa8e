"""Every weight of a packed file, rebuilt as a session rebuilds it, against the numbers that it stands for."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ptqc.codegen.onnxruntime.export import Exported
from ptqc.codegen.onnxruntime.intent import Intent
from ptqc.errors import VerificationError
from ptqc.execute.onnxruntime import Runner, session_options
from ptqc.formats import Format
from ptqc.lowered import Lowered

# Weights of more elements together are rebuilt one after the other.
TOGETHER = 2**23


def check(exported: Exported, lowered: Lowered, intent: Intent) -> int:
    """Compare values bit by bit and formats with the plan's; the number of weights. Raises VerificationError."""
    layers = {layer.name: layer.weight for layer in intent.plan.layers}
    places = {**lowered.weights, **{w.name: w.name for w in intent.plan.weights if w.name in exported.renamed}}
    makers = {name: node for node in exported.packed.graph.node for name in node.output}
    forms = {function.name: function.form for function in exported.functions}
    types = {t.name: helper.tensor_dtype_to_np_dtype(t.data_type).name for t in exported.packed.graph.initializer}
    seen = set()
    named = [(place, of, exported.renamed[place]) for place, of in places.items()]
    for place, of, name, found in _found(exported.proto, named, intent):
        weight = layers.get(of, of)
        form, planned = _form(makers.get(name), forms, types, name), intent.plan.formats[weight]
        if form != planned:
            raise VerificationError(f"weight {weight!r} is stored as {form}, not as {planned} as the plan says")
        if not np.array_equal(intent.solution(of).weight, found):
            raise VerificationError(f"weight {weight!r}, made as {place!r}, is not what was tuned")
        seen.add(weight)
    # Of equal float constants one is stored.
    packed = {name for name, form in intent.plan.formats.items() if not form.is_given}
    if missing := sorted(packed - seen):
        raise VerificationError(f"weights are not in the file: {', '.join(missing[:5])}")
    return len(seen)


def _found(
    proto: onnx.ModelProto, named: Sequence[tuple[str, str, str]], intent: Intent
) -> Iterator[tuple[str, str, str, np.ndarray]]:
    """Places, weights and names in the file with the values there; about TOGETHER elements are made at once."""
    group: list[tuple[str, str, str]] = []
    for number, each in enumerate(named):
        group.append(each)
        size = sum(intent.solution(of).codes.size for _, of, _ in group)
        if size >= TOGETHER or number == len(named) - 1:
            for found, value in zip(group, _values(proto, [name for _, _, name in group]), strict=True):
                yield *found, value
            group = []


def _form(maker: onnx.NodeProto | None, forms: Mapping[str, Format], types: Mapping[str, str], name: str) -> Format:
    """The format behind a value: that of the function that makes it, or of the tensor itself, which a Cast may read."""
    if maker is not None and maker.domain:
        return forms[maker.op_type]
    return Format.parse(types[name if maker is None else maker.input[0]])


def _values(proto: onnx.ModelProto, names: Sequence[str]) -> list[np.ndarray]:
    """Values of constants, each made by nodes from initializers or an initializer itself."""
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    made = [name for name in names if name not in tensors]
    nodes, read = list[onnx.NodeProto](), set(made)
    for node in reversed(proto.graph.node):
        if not read.isdisjoint(node.output):
            nodes.append(node)
            read.update(node.input)
    part = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    part.graph.name = "weights"
    part.graph.node.extend(reversed(nodes))
    part.graph.initializer.extend(tensor for name, tensor in tensors.items() if name in read)
    part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    found = Runner(part, options=session_options(optimize=False)).run({}) if made else {}
    return [found[name] if name in found else numpy_helper.to_array(tensors[name]) for name in names]
