"""Which kernels ONNX Runtime really picked, read from the model that it optimized."""

import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnxruntime as ort

from ptqc.execute.onnxruntime import session_options

INTEGER_KERNELS = {
    "Conv": frozenset(("QLinearConv",)),
    "Gemm": frozenset(("QGemm",)),
    "MatMul": frozenset(("QLinearMatMul", "MatMulIntegerToFloat")),
    "Add": frozenset(("QLinearAdd",)),
    "Mul": frozenset(("QLinearMul",)),
    "AveragePool": frozenset(("QLinearAveragePool",)),
    "GlobalAveragePool": frozenset(("QLinearGlobalAveragePool",)),
    "Sigmoid": frozenset(("QLinearSigmoid",)),
    "LeakyRelu": frozenset(("QLinearLeakyRelu",)),
}
# Layout changes that the optimizer puts behind a kernel.
PASSES_ON = frozenset(("Transpose", "Reshape", "Squeeze", "Unsqueeze"))


@dataclass(frozen=True)
class Census:
    """Operators of the optimized graph, and the planned integer nodes that did not become integer kernels."""

    operators: Mapping[str, int]
    missed: Mapping[str, str]


def take(data: bytes, expected: Mapping[str, tuple[str, str]]) -> Census:
    """Count kernels. expected: node name -> (operator, name in the file of the value that its kernel gives)."""
    with tempfile.TemporaryDirectory(prefix="ptqc-") as folder:
        path = Path(folder) / "optimized.onnx"
        options = session_options()
        options.optimized_model_filepath = str(path)
        ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        graph = onnx.load(path).graph
    makers = {name: node for node in graph.node for name in node.output}
    missed = {}
    for node, (operator, value) in expected.items():
        found = _kernel(makers, value)
        if found not in INTEGER_KERNELS[operator]:
            missed[node] = found
    return Census(dict(sorted(Counter(n.op_type for n in graph.node).items())), missed)


def _kernel(makers: Mapping[str, onnx.NodeProto], value: str) -> str:
    """The operator that computes a value, behind layout changes."""
    node = makers.get(value)
    while node is not None and node.op_type in PASSES_ON:
        node = makers.get(node.input[0])
    return node.op_type if node is not None else "nothing"
