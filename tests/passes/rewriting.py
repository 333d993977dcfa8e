"""Small models written as text, for the tests of the rewrites."""

import numpy as np
import onnx.parser
import onnx_ir as ir
from onnx import numpy_helper

from ptqc.notes import Note
from ptqc.passes.base import Feeds, Rewrite
from ptqc.passes.graph_tools import infer_shapes
from ptqc.passes.pipeline import run_rewrites


def parse(graph: str, opset: int = 18, **constants: np.ndarray) -> ir.Model:
    """The model of a graph in ONNX's text form, with these initializers."""
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {graph}')
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    model = ir.from_proto(proto)
    infer_shapes(model)
    return model


def rewrite(model: ir.Model, step: Rewrite, **feeds: np.ndarray) -> list[Note]:
    """Apply one pass; the pipeline compares the outputs before and after on the feeds."""
    probe: list[Feeds] = [feeds]
    return run_rewrites(model, (step,), probe)


def operators(model: ir.Model) -> list[str]:
    """Operator types of the main graph, in order."""
    return [node.op_type for node in model.graph]


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal random numbers in float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
