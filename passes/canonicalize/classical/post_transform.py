"""What the classifiers of `ai.onnx.ml` make of their scores, in ONNX's own operators, as ONNX Runtime computes it."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from ptqc.passes.canonicalize.tools.writing import Writer

# Scores nearer to zero than this count as zero for SOFTMAX_ZERO.
ZERO = 1e-7
# The approximation of the inverse error function after S. Winitzki (2008), with ONNX Runtime's digits.
WINITZKI = 0.147
PI = 3.14159


def transformed(write: Writer, scores: ir.Value, kind: str) -> ir.Value:
    """Two or more scores of each sample after the transform; `scores` itself for NONE."""
    return TRANSFORMS[kind](write, scores)


def with_second_class(write: Writer, score: ir.Value, kind: str, opposite: bool) -> ir.Value:
    """Scores of two classes made of the one of the second class.

    opposite: the first is -score instead of 1 - score, for other transforms than LOGISTIC.
    """
    negative = write.op("Neg", score)
    if kind == "LOGISTIC":
        return write.op("Sigmoid", write.op("Concat", negative, score, axis=1))
    first = negative if opposite else write.op("Add", negative, write.real(1.0, "one"))
    return write.op("Concat", first, score, axis=1)


def _softmax_zero(write: Writer, scores: ir.Value) -> ir.Value:
    """Softmax over the scores that are not zero; zeros stay zero."""
    axis = write.axis(1)
    largest = write.op("ReduceMax", scores, axis, keepdims=1)
    counted = write.op("Greater", write.op("Abs", scores), write.real(ZERO, "zero"))
    powers = write.op("Exp", write.op("Sub", scores, largest))
    least = write.op("Mul", scores, write.op("Exp", write.op("Neg", largest)))
    total = write.op("ReduceSum", write.op("Where", counted, powers, write.real(0.0, "nothing")), axis, keepdims=1)
    return write.op("Div", write.op("Where", counted, powers, least), total)


def probit(write: Writer, scores: ir.Value) -> ir.Value:
    """The inverse of the normal distribution: sqrt(2) erfinv(2 p - 1)."""
    x = write.op("Sub", write.op("Mul", scores, write.real(2.0, "two")), write.real(1.0, "one"))
    rest = write.op("Mul", write.op("Sub", write.real(1.0, "one"), x), write.op("Add", write.real(1.0, "one"), x))
    log = write.op("Log", rest)
    middle = write.op("Add", write.op("Mul", log, write.real(0.5, "half")), write.real(2 / (PI * WINITZKI), "shift"))
    squared = write.op("Sub", write.op("Mul", middle, middle), write.op("Mul", log, write.real(1 / WINITZKI, "slope")))
    size = write.op("Sqrt", write.op("Sub", write.op("Sqrt", squared), middle))
    is_lower = write.op("Less", x, write.real(0.0, "middle"))
    root = float(np.sqrt(2.0))
    return write.op("Mul", size, write.op("Where", is_lower, write.real(-root, "lower"), write.real(root, "upper")))


TRANSFORMS: dict[str, Callable[[Writer, ir.Value], ir.Value]] = {
    "NONE": lambda _write, scores: scores,
    "SOFTMAX": lambda write, scores: write.op("Softmax", scores, axis=1),
    "LOGISTIC": lambda write, scores: write.op("Sigmoid", scores),
    "SOFTMAX_ZERO": _softmax_zero,
    "PROBIT": probit,
}
