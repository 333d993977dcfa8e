"""QDQ models whose weights of up to 4 bits take half a byte each."""

from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from ptqc.codegen.qdq.edits import copied, drop_unread, raise_opset
from ptqc.codegen.qdq.rules import QdqGraph

LOW, HIGH = -8, 7


def with_int4(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with INT4 for each weight that layers alone read and whose codes are from -8 to 7."""
    result = copied(model)
    graph = QdqGraph(result)
    narrow, zeros = dict(_narrow(graph)), dict[str, onnx.TensorProto]()
    for name, readers in narrow.items():
        graph.constants[name].CopyFrom(_int4(np.asarray(graph.array(name)), name))
        for node in readers:
            zero = node.input[2]
            if zero not in zeros:
                zeros[zero] = _int4(np.asarray(graph.array(zero)), f"{zero}/4")
            node.input[2] = zeros[zero].name
    result.graph.initializer.extend(zeros.values())
    if narrow:
        drop_unread(result)
        raise_opset(result)
    return result


def _narrow(graph: QdqGraph) -> Iterator[tuple[str, list[onnx.NodeProto]]]:
    """Constants with such codes, each with what dequantizes it."""
    weights = [weight for _, _, weight in graph.layers()]
    of_layers = {weight.output[0] for weight in weights}
    for name in dict.fromkeys(weight.input[0] for weight in weights):
        codes, readers = np.asarray(graph.array(name)), list(graph.readers[name])
        fits = codes.dtype == np.int8 and codes.min(initial=0) >= LOW and codes.max(initial=0) <= HIGH
        if fits and of_layers.issuperset(reader.output[0] for reader in readers):
            yield name, readers


def _int4(codes: np.ndarray, name: str) -> onnx.TensorProto:
    return numpy_helper.from_array(codes.astype(ir.DataType.INT4.numpy()), name)
