"""One operator between DequantizeLinear and QuantizeLinear as ONNX Runtime runs it: what its integer kernels give."""

import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from ptqc.formats import UINT8, QuantParams

# Elsewhere MLAS adds and averages with fixed-point multipliers.
x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the formulas are those of x86 kernels")

RNG = st.integers(0, 2**32 - 1).map(np.random.default_rng)
ELEMENT = {"float32": onnx.TensorProto.FLOAT, "uint8": onnx.TensorProto.UINT8, "int8": onnx.TensorProto.INT8}


@dataclass
class Graph:
    """A graph under construction; every method returns the name of the value it made."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    feeds: dict[str, np.ndarray] = field(default_factory=dict)

    def constant(self, array: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(array), f"c{len(self.constants)}"))
        return self.constants[-1].name

    def input(self, array: np.ndarray) -> str:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = array
        return name

    def add(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], **attributes))
        return name

    def real(self, codes: str, params: QuantParams) -> str:
        return self.add("DequantizeLinear", [codes, *self._parameters(params)])

    def codes(self, real: str, params: QuantParams) -> str:
        return self.add("QuantizeLinear", [real, *self._parameters(params)])

    def weight(self, codes: np.ndarray, scale: np.ndarray, axis: int) -> str:
        """Constant codes behind a DequantizeLinear along an axis."""
        scales, zeros = self.constant(scale.astype(np.float32)), self.constant(np.zeros(scale.shape, codes.dtype))
        return self.add("DequantizeLinear", [self.constant(codes), scales, zeros], axis=axis)

    def _parameters(self, params: QuantParams) -> list[str]:
        zero = np.array(params.zero_point, np.int8 if params.format.signed else np.uint8)
        return [self.constant(np.array(params.scale, np.float32)), self.constant(zero)]

    def model(self, output: str) -> onnx.ModelProto:
        inputs = [
            helper.make_tensor_value_info(name, ELEMENT[str(array.dtype)], array.shape)
            for name, array in self.feeds.items()
        ]
        graph = helper.make_graph(self.nodes, "g", inputs, [onnx.ValueInfoProto(name=output)], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)

    def run(self, output: str) -> tuple[np.ndarray, set[str]]:
        """The value of an output, and the operators left after ONNX Runtime's optimizations."""
        return run_optimized(self.model(output).SerializeToString(), self.feeds)


def run_optimized(
    data: bytes, feeds: dict[str, np.ndarray], entries: Mapping[str, str] = MappingProxyType({})
) -> tuple[np.ndarray, set[str]]:
    """The only output of a model, and the operators of the graph that ONNX Runtime made of it.

    entries: of the session's configuration.
    """
    options = ort.SessionOptions()
    for entry in entries.items():
        options.add_session_config_entry(*entry)
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        options.optimized_model_filepath = str(path)
        session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        operators = {node.op_type for node in onnx.load(path).graph.node}
    return session.run(None, feeds)[0], operators


def scales() -> st.SearchStrategy[float]:
    """Positive float32 scales: anything, and small fractions, for which sums fall on halves."""
    fractions = st.builds(lambda n, d: float(np.float32(n / d)), st.integers(1, 24), st.sampled_from([3, 5, 8, 10, 64]))
    return st.floats(1e-4, 10.0).map(lambda x: float(np.float32(x))) | fractions


def params() -> st.SearchStrategy[QuantParams]:
    """Parameters of a uint8 activation."""
    return st.builds(QuantParams, st.just(UINT8), scales(), st.integers(0, 255))


def codes_like(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Random uint8 codes."""
    return rng.integers(0, 256, shape).astype(np.uint8)


def near_halves(rng: np.random.Generator, denominators: list[int]) -> tuple[QuantParams, ...]:
    """Parameters of the operands and the result, for which many results lie within one rounding error of a half."""
    step = np.float32(np.exp(rng.normal(-4, 1)))
    steps = [step * np.float32(rng.integers(1, 16)) / np.float32(rng.choice(denominators)) for _ in range(2)]
    return tuple(QuantParams(UINT8, float(s), int(rng.integers(0, 256))) for s in (*steps, step))
