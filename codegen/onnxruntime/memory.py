"""Bytes of a file's constants once ONNX Runtime has loaded it: packed weights are unpacked then.

Products whose weights stay packed keep more of each block than is stored (`ptqc.codegen.onnxruntime.matmul_nbits`).
"""

import onnx

from ptqc.codegen.onnxruntime.census import optimized
from ptqc.codegen.onnxruntime.matmul_nbits import kept_bytes
from ptqc.ir.protos import subgraphs
from ptqc.ir.references import bytes_of, refers


def loaded_bytes(proto: onnx.ModelProto) -> int:
    """Bytes of all constants of the graph that is run, of those inside its nodes too, and of what kernels keep."""
    return _constants(optimized(proto))


def _constants(graph: onnx.GraphProto) -> int:
    inside = sum(_constants(inner) for node in graph.node for inner in subgraphs(node))
    return inside + sum(map(kept_bytes, graph.node)) + sum(map(_bytes, graph.initializer))


def _bytes(tensor: onnx.TensorProto) -> int:
    return bytes_of(tensor) if refers(tensor) else int(onnx.numpy_helper.to_array(tensor).nbytes)
