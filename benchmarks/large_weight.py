"""A file of one product whose weight has 303 million numbers, rounded to nearest, packed as a compile packs it."""

from pathlib import Path

import numpy as np
import onnx_ir as ir

from ptqc.codegen.onnxruntime.export import FILE, export
from ptqc.formats import Integer
from ptqc.ir.layers import find_layers, find_weights
from ptqc.ir.nodes import initial
from ptqc.ir.plan import Plan
from ptqc.ir.quantized_weight import QuantizedParameters, QuantizedWeight
from ptqc.ir.sites import find_kernels
from ptqc.passes.allocate.lower import Lower
from ptqc.passes.base import Probed
from ptqc.passes.canonicalize.split_products import SplitProducts
from ptqc.passes.quantize.phases import PlanWithParameters

ROWS, WIDTH = 148_000, 2048
BITS = 4
NAME = f"one weight of {ROWS * WIDTH:,} numbers"


def float_model(rows: int, width: int) -> ir.Model:
    """A product with a matrix of random numbers in float32: x (n, width) gives y (n, rows)."""
    matrix = np.random.default_rng(0).standard_normal((rows, width), np.float32)
    weight = ir.Value(name="w", type=ir.TensorType(ir.DataType.FLOAT), const_value=ir.tensor(matrix, name="w"))
    weight.shape = ir.Shape(matrix.shape)
    x, y = (
        ir.Value(name=name, shape=ir.Shape(["n", size]), type=ir.TensorType(ir.DataType.FLOAT))
        for name, size in (("x", width), ("y", rows))
    )
    node = ir.Node("", "Gemm", [x, weight], {"transB": ir.AttrInt64("transB", 1)}, outputs=[y])
    graph = ir.Graph([x], [y], nodes=[node], initializers=[weight], opset_imports={"": 18}, name="g")
    return ir.Model(graph, ir_version=8)


def sample(width: int = WIDTH) -> dict[str, np.ndarray]:
    """One row of an input."""
    return {"x": np.random.default_rng(1).standard_normal((1, width), np.float32)}


def write(folder: Path, rows: int = ROWS, width: int = WIDTH) -> Path:
    """Pack the product in BITS bits; the path of the file."""
    model, form = float_model(rows, width), Integer(BITS)
    SplitProducts().apply(Probed(model))
    layers = find_layers(model)
    weights = find_weights(model, layers)
    solutions = {}
    for weight in weights:
        codes, scale = form.rounded(initial(model, weight.name), weight.channel_axis)
        solutions[weight.name] = QuantizedWeight(form, codes, scale, weight.channel_axis)
    formats = dict.fromkeys(solutions, form)
    plan = Plan(tuple(layers), tuple(weights), tuple(find_kernels(model, layers)), (), {}, formats)
    parameters = QuantizedParameters(solutions, dict.fromkeys(layer.name for layer in layers))
    path = folder / FILE
    path.write_bytes(export(Lower().apply(PlanWithParameters(model, plan, parameters)).output, model).data)
    return path
