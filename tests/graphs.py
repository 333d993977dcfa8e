"""Small models written as text, for the tests that need one."""

import numpy as np
import onnx.parser
import onnx_ir as ir
from onnx import numpy_helper

from ptqc.ir.nodes import infer_shapes


def parse(graph: str, opset: int = 18, /, **constants: np.ndarray | np.generic) -> ir.Model:
    """The model of a graph in ONNX's text form, with these initializers and all inner shapes."""
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {graph}')
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()
    )
    model = ir.from_proto(proto)
    infer_shapes(model)
    return model


def noise(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Normal random numbers in float32."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)
