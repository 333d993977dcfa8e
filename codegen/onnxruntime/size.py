"""Bytes of a candidate in the written file, counted on the very messages that the exporter writes.

A protobuf file is the sum of its entries, so what one weight adds (planes, scales, bias, call) is exact. Not counted
are the length prefixes of the outermost messages (at most 4 bytes each way) and initializers that turn out equal,
which are stored once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import onnx

from ptqc.codegen.onnxruntime import constants
from ptqc.codegen.onnxruntime.matmul_nbits import (
    BlockProduct,
    loaded_scale_bytes,
    picked_in_blocks,
    product_bytes,
    rows_bytes,
)
from ptqc.codegen.onnxruntime.unpack import expanded
from ptqc.codegen.onnxruntime.unpack_functions import DOMAIN, Pick, UnpackFunction
from ptqc.codegen.onnxruntime.verify import optimized
from ptqc.formats import Format
from ptqc.formats.base import LOWEST_OPSET
from ptqc.ir.external import bytes_of, field_bytes, refers, tensor
from ptqc.ir.protos import subgraphs
from ptqc.ir.quantized_weight import QuantizedWeight

# What the outer length prefixes can differ by between two plans of one model.
BOUND = 16
REAL = 4  # bytes of a number in float32


@dataclass(frozen=True)
class Use:
    """One reader of a weight: a layer on an integer kernel, with this bias if it has any, or one in float.

    in_blocks: it keeps the weight packed, as products of this kind do. apart: how many of its input and output nodes
    keep apart from others. is_table: it reads the weight as a table. rank: of the
    places, where it picks rows of one that stays packed, by a function or in an operator of its own.
    """

    integer: bool = False
    bias: constants.Bias | None = None
    in_blocks: type[BlockProduct] | None = None
    apart: int = 0
    is_table: bool = False
    rank: int | None = None


@dataclass(frozen=True)
class WeightBytes:
    """What a weight adds to the file: bytes of its own, functions, and bytes of what others of its format share."""

    own: int
    functions: tuple[UnpackFunction, ...]
    common: Mapping[str, int]

    def parts(self, opset: int) -> Mapping[str, int]:
        """What is in the file once, however many weights need it, by name: bytes."""
        return {**function_bytes(self.functions, opset), **self.common}


class _Counter:
    """Counts initializers instead of keeping them; equal ones of one weight once."""

    def __init__(self, name: str, form: Format) -> None:
        self.name = name
        self.total = 0
        self.common: dict[str, int] = {}
        self._seen: set[_Key] = set()
        self._common = {_key(array): name for name, array in constants.common(form).items()}

    def share(self, array: np.ndarray) -> str:
        key, bytes_ = _key(array), field_bytes(tensor(self.name, array).ByteSize())
        if array.size == 1:  # the whole file shares them
            self.common[f"{array.dtype} {array.tolist()}"] = bytes_
        elif key in self._common:
            self.common[self._common[key]] = bytes_
        elif key not in self._seen:
            self.total += bytes_
            self._seen.add(key)
        return self.name

    def own(self, array: np.ndarray) -> str:
        """The same for one that nothing else may read."""
        self.total += field_bytes(tensor(self.name, array).ByteSize())
        return self.name


_Key = tuple[str, tuple[int, ...], bytes]


def _key(array: np.ndarray) -> _Key:
    return str(array.dtype), array.shape, array.tobytes()


def stored(
    solution: QuantizedWeight, uses: Sequence[Use], name_length: int, *, inline: bool = False, tied: bool = False
) -> WeightBytes:
    """Bytes of a weight and its calls, and what it needs. uses: its readers; none for what is read whole once.

    inline: nodes stand in the place of the calls, and there are no functions. tied: both layers and a table read it.
    """
    counter = _Counter("n" * name_length, solution.form)
    products, rows = ([use for use in uses if use.in_blocks and use.is_table == is_table] for is_table in (False, True))
    own = sum(_in_blocks(solution, use, counter) for use in products)
    own += len(rows) * _rows_in_blocks(solution, counter, is_multiplied=bool(products)) if rows else 0
    readers = [use for use in uses or (Use(),) if not use.in_blocks]
    calls = [_call(solution, use, counter, tied) for use in readers]
    needed = tuple(dict.fromkeys(function for function, _ in calls if function is not None))
    nodes = [node for call in calls for node in (_inlined(*call, counter) if inline else call[1:]) if node is not None]
    total = own + counter.total + sum(field_bytes(node.ByteSize()) for node in nodes)
    return WeightBytes(total, () if inline else needed, counter.common)


def loaded(solution: QuantizedWeight, uses: Sequence[Use], own: int, elements: int) -> int:
    """Bytes that the readers of a weight in float take in memory more than if they unpacked its elements to float32.

    own: bytes of the weight in the file, which a table that stays packed takes without an operator of its own.
    """
    unpacked = REAL * elements
    products = [use for use in uses if use.in_blocks and not use.is_table]
    rows = [use for use in uses if use.rank is not None]
    kinds = [use.in_blocks for use in products if use.in_blocks is not None]
    result = sum(product_bytes(solution, kind) for kind in kinds) - unpacked if products else 0
    if rows:
        result += (rows_bytes(solution) if rows[0].in_blocks else own) - unpacked
    return result


def _inlined(
    function: UnpackFunction | None, call: onnx.NodeProto | None, counter: _Counter
) -> list[onnx.NodeProto | None]:
    """The nodes of a call. What it states becomes constants; those of the function are the same for every plan."""
    if function is None or call is None:
        return [call]
    body = function.to_proto(LOWEST_OPSET)
    constant = {a.ref_attr_name for node in body.node if node.op_type == "Constant" for a in node.attribute}
    for attribute in call.attribute:
        if attribute.name in constant:
            counter.share(np.array(attribute.ints, np.int64))
    return [*expanded(call, body, lambda: counter.name, lambda _array: counter.name)]


def _in_blocks(solution: QuantizedWeight, use: Use, counter: _Counter) -> int:
    """Bytes of the nodes of a product in blocks, less those of the one that is there without them."""
    name, kind = counter.name, use.in_blocks
    assert kind is not None
    product = kind(
        x=name,
        output=name,
        bias=None,
        weight=name,
        codes=name,
        stored=solution.by_channel(),
        is_turned=True,
        x_apart=use.apart > 0,
        y_apart=use.apart > 1,
    )
    nodes = product.nodes(counter.share, counter.own)
    for node in nodes:
        node.input[:], node.output[:] = [name] * len(node.input), [name] * len(node.output)
    plain = onnx.helper.make_node("MatMul", [name, name], [name])
    return sum(field_bytes(node.ByteSize()) for node in nodes) - field_bytes(plain.ByteSize())


def _rows_in_blocks(solution: QuantizedWeight, counter: _Counter, *, is_multiplied: bool) -> int:
    """Bytes of the nodes that pick rows in blocks. is_multiplied: whether products read the table in blocks, too."""
    name = counter.name
    pick = Pick(name, name, name, name, solution.by_channel(), 1, np.dtype(np.int64))
    nodes = picked_in_blocks(pick, counter.share, is_multiplied=is_multiplied)
    for node in nodes:
        node.input[:], node.output[:] = [name] * len(node.input), [name] * len(node.output)
    return sum(field_bytes(node.ByteSize()) for node in nodes)


def _call(
    solution: QuantizedWeight, use: Use, counter: _Counter, tied: bool
) -> tuple[UnpackFunction | None, onnx.NodeProto | None]:
    name, form = counter.name, solution.form
    if form.is_plain:
        return None, _plain(solution, use, counter, tied)
    if tied and use.is_table:
        solution = solution.by_channel()
    share, pack = counter.share, constants.sized
    if use.rank is not None:
        pick = Pick(name, name, name, name, solution, use.rank, np.dtype(np.int64))
        packed = constants.picked(pick, share, pack=pack)
    elif use.integer and use.bias is not None:
        packed = constants.layer(solution, use.bias, name, [name, name], share, tied=tied, pack=pack)
    else:
        packed = constants.weight(solution, name, share, as_float=not use.integer, tied=tied, pack=pack)
    return packed.function, packed.call


def _plain(solution: QuantizedWeight, use: Use, counter: _Counter, tied: bool) -> onnx.NodeProto | None:
    """The node that makes a weight of a tensor that is stored as it is; layers turn what a table stores."""
    form, name = solution.form, counter.name
    stored = solution.by_channel() if tied else solution
    for array in form.pack(stored.codes, stored.scale):
        counter.share(array)
    if tied and not use.is_table:
        return onnx.helper.make_node("Transpose", [name], [name], perm=[1, 0]) if solution.axis else None
    if form.is_scaled:
        return onnx.helper.make_node("DequantizeLinear", [name, name], [name], axis=stored.axis)
    return None if form.is_given else onnx.helper.make_node("Cast", [name], [name], to=onnx.TensorProto.FLOAT)


def function_bytes(functions: Sequence[UnpackFunction], opset: int) -> Mapping[str, int]:
    """Bytes of each function by name, and of the import that the first one brings."""
    if not functions:
        return {}
    imports = onnx.helper.make_opsetid(DOMAIN, 1)
    sizes = {function.name: _function_bytes(function, opset) for function in functions}
    return {**sizes, DOMAIN: field_bytes(imports.ByteSize())}


@lru_cache(maxsize=1024)
def _function_bytes(function: UnpackFunction, opset: int) -> int:
    return field_bytes(function.to_proto(opset).ByteSize())


# Bytes of a file's constants once ONNX Runtime has loaded it: packed weights are unpacked then.
#
# Products whose weights stay packed keep more of each block than is stored (`ptqc.codegen.onnxruntime.matmul_nbits`).


def loaded_bytes(proto: onnx.ModelProto) -> int:
    """Bytes of all constants of the graph that is run, of those inside its nodes too, and of what kernels keep."""
    return _constants(optimized(proto))


def _constants(graph: onnx.GraphProto) -> int:
    inside = sum(_constants(inner) for node in graph.node for inner in subgraphs(node))
    return inside + sum(map(loaded_scale_bytes, graph.node)) + sum(map(_bytes, graph.initializer))


def _bytes(tensor: onnx.TensorProto) -> int:
    return bytes_of(tensor) if refers(tensor) else int(onnx.numpy_helper.to_array(tensor).nbytes)
