"""Every weight of a packed file, rebuilt as a session rebuilds it, against the numbers that it stands for."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnx
from onnx import helper

from ptqc.codegen.onnxruntime import matmul_nbits
from ptqc.codegen.onnxruntime.export import Exported
from ptqc.codegen.onnxruntime.functions import BITS_INPUTS
from ptqc.codegen.onnxruntime.matmul_nbits import BlockProduct
from ptqc.codegen.onnxruntime.rows import Pick
from ptqc.codegen.onnxruntime.verify_semantics import Intent
from ptqc.errors import VerificationError
from ptqc.execution.onnxruntime import Runner, session_options
from ptqc.formats import Format, Integer, VectorCodebook
from ptqc.ir.lowered import Lowered
from ptqc.ir.references import array_of

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
    for place, of, name, found in _found(exported, places, intent):
        weight = weights.get(of, of)
        planned = intent.plan.formats[weight]
        form = _form(name, makers, forms, types) or _listed(makers[name], tensors, planned)
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


def _found(exported: Exported, places: Mapping[str, str], intent: Intent) -> Iterator[tuple[str, str, str, np.ndarray]]:
    """Places, weights and names in the file with the values there; about TOGETHER elements are made at once."""
    group, size = list[tuple[str, str, str]](), 0
    for place, of in places.items():
        if (pick := exported.picks.get(place)) is not None:
            yield place, of, exported.renamed[pick.rows], _every_row(exported, pick)
            continue
        if (block := exported.blocks.get(place)) is not None:
            yield place, of, exported.renamed[block.product], _product_with_ones(exported, block)
            continue
        group.append((place, of, exported.renamed[place]))
        size += intent.solution(of).codes.size
        if size >= TOGETHER:
            yield from _made(exported.proto, group)
            group, size = [], 0
    yield from _made(exported.proto, group)


def _made(proto: onnx.ModelProto, group: Sequence[tuple[str, str, str]]) -> Iterator[tuple[str, str, str, np.ndarray]]:
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
    return forms[maker.op_type] if maker.domain else _form(maker.input[0], makers, forms, types)


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
    (found,) = _values(exported.proto, [product], {x: np.eye(block.width, dtype=np.float32)})
    return found if block.is_turned else found.T


def _every_row(exported: Exported, pick: Pick) -> np.ndarray:
    """A table, row by row as the file picks them."""
    rows, places = (exported.renamed[name] for name in (pick.rows, pick.places))
    count = len(pick.solution.codes)
    every = np.arange(count, dtype=pick.dtype).reshape(count, *(1,) * (pick.rank - 1))
    (found,) = _values(exported.proto, [rows], {places: every})
    return found.reshape(count, -1)


def _values(
    proto: onnx.ModelProto, names: Sequence[str], given: Mapping[str, np.ndarray] = MappingProxyType({})
) -> list[np.ndarray]:
    """Values that nodes make of initializers and of what is given, or initializers themselves."""
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    made = [name for name in names if name not in tensors]
    nodes, read = list[onnx.NodeProto](), set(made)
    for node in reversed(proto.graph.node):
        if not (read - given.keys()).isdisjoint(node.output):
            nodes.append(node)
            read.update(node.input)
    part = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    part.graph.name = "weights"
    part.graph.node.extend(reversed(nodes))
    part.graph.initializer.extend(tensor for name, tensor in tensors.items() if name in read)
    part = matmul_nbits.without_rounding(part, made)
    part.graph.input.extend(_described(name, array) for name, array in given.items())
    part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    found = Runner(part, options=session_options(optimize=False)).run(dict(given)) if made else {}
    return [found[name] if name in found else array_of(tensors[name]) for name in names]


def _described(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
