"""Products of matrices."""

import onnx_ir as ir
import torch
from torch import Tensor

from ptqc.execution.torch.operators.signature import Operators, of_inputs
from ptqc.ir.nodes import integer, number, text


def _gemm(node: ir.Node, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    alpha, beta = number(node, "alpha", 1.0), number(node, "beta", 1.0)
    y = (a.T if integer(node, "transA", 0) else a) @ (b.T if integer(node, "transB", 0) else b)
    y = y if alpha == 1 else alpha * y
    return y if c is None else y + (c if beta == 1 else beta * c)


def _einsum(node: ir.Node, *inputs: Tensor) -> Tensor:
    return torch.einsum(text(node, "equation", ""), *inputs)


OPERATORS: Operators = {"Einsum": _einsum, "Gemm": _gemm, "MatMul": of_inputs(torch.matmul)}
