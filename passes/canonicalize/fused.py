"""Operators that ONNX Runtime's optimizer fused, written in ONNX's own again, so that their layers are layers.

What has no other form stays in float: attention over a cache, rotary positions. Attention with joined weights becomes
a product with them and MultiHeadAttention of its parts. ONNX Runtime fuses the written file anew when it loads it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import pi, sqrt
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.frontend.operators import FUSED as DOMAIN
from ptqc.ir.nodes import (
    constant,
    input_of,
    integer,
    integers,
    number,
    producer,
    rank,
    same_size,
    static,
    text,
)
from ptqc.passes.base import Effect, Probed, Result
from ptqc.passes.canonicalize.tools import Rule, Writer, write_out

LAYER_ATTRIBUTES = {
    "Conv": ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"),
    "Gemm": ("alpha", "beta", "transA", "transB"),
}
# Of the activations that the optimizer fuses into layers: the parameters that they take, in its order.
ACTIVATIONS = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min", "max"),
}
EPSILON = 1e-12  # of the skip and embedding normalizations, where none is stated


@dataclass(frozen=True)
class Fused:
    """Split fused operators into standard ones."""

    name: ClassVar[str] = "fused"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, probed: Probed) -> Result[Probed]:
        """One note for each operator of ONNX Runtime's own."""
        notes = write_out(probed.model, self.name, DOMAIN, RULES)
        return probed.rewritten(notes, unsaid=bool(notes))


def _layer(write: Writer, op_type: str, inputs: int) -> ir.Value:
    """The standard layer in a fused one, with its own attributes and first inputs."""
    attributes = {name: a.value for name, a in write.node.attributes.items() if name in LAYER_ATTRIBUTES[op_type]}
    return write.op(op_type, *write.node.inputs[:inputs], **attributes)


def _activated(write: Writer, value: ir.Value, parameters: Mapping[str, Any]) -> ir.Value:
    kind = text(write.node, "activation", "")
    if kind == "Clip":
        return write.op(kind, value, *(write.real(parameters[name], name) for name in ACTIVATIONS[kind]))
    return write.op(kind, value, **parameters)


def _unknown_activation(write: Writer) -> str | None:
    kind = text(write.node, "activation", "")
    return None if kind in ACTIVATIONS else f"its activation {kind!r} is not known"


def _conv(write: Writer) -> list[ir.Value] | str:
    """act(Conv(x, w, b) + z)"""
    if (reason := _unknown_activation(write)) is not None:
        return reason
    names, attribute = ACTIVATIONS[text(write.node, "activation", "")], write.node.attributes.get("activation_params")
    parameters = {} if attribute is None else dict(zip(names, attribute.as_floats(), strict=False))
    result, addend = _layer(write, "Conv", 3), write.optional(3)
    return [_activated(write, result if addend is None else write.op("Add", result, addend), parameters)]


def _gemm(write: Writer) -> list[ir.Value] | str:
    """act(alpha A B + beta C)"""
    if (reason := _unknown_activation(write)) is not None:
        return reason
    stated = {name: write.node.attributes.get(f"activation_{name}") for name in ("alpha", "beta")}
    parameters = {name: attribute.as_float() for name, attribute in stated.items() if attribute is not None}
    return [_activated(write, _layer(write, "Gemm", 3), parameters)]


def _matmul(write: Writer) -> list[ir.Value] | str:
    """alpha A B, with the last two axes of either exchanged."""
    if integer(write.node, "transBatchA", 0) or integer(write.node, "transBatchB", 0):
        return "it exchanges the axes of the batch"
    sides = []
    for index, name in enumerate(("transA", "transB")):
        side = write.input(index)
        if integer(write.node, name, 0):
            axes = rank(side)
            if axes is None:
                return f"the rank of {side.name!r} is not known"
            side = write.op("Transpose", side, perm=[*range(axes - 2), axes - 1, axes - 2]) if axes > 1 else side
        sides.append(side)
    alpha = number(write.node, "alpha", 1.0)
    product = write.op("MatMul", *sides)
    return [product if alpha == 1.0 else write.op("Mul", product, write.real(alpha, "alpha"))]


def _with_bias(write: Writer) -> ir.Value:
    bias = write.optional(1)
    return write.input() if bias is None else write.op("Add", write.input(), bias)


def _gelu(write: Writer) -> list[ir.Value] | str:
    """x / 2 (1 + erf(x / √2)), of an input plus a bias if there is one."""
    x = _with_bias(write)
    share = write.op("Add", write.op("Erf", write.op("Div", x, write.real(sqrt(2), "root"))), write.real(1.0, "one"))
    return [write.op("Mul", write.op("Mul", x, share), write.real(0.5, "half"))]


def _fast_gelu(write: Writer) -> list[ir.Value] | str:
    """x / 2 (1 + tanh(√(2/π) (x + 0.044715 x³))), of an input plus a bias if there is one."""
    x = _with_bias(write)
    cube = write.op("Mul", write.op("Pow", x, write.real(3.0, "three")), write.real(0.044715, "cubic"))
    inner = write.op("Mul", write.op("Add", x, cube), write.real(sqrt(2 / pi), "slope"))
    share = write.op("Add", write.op("Tanh", inner), write.real(1.0, "one"))
    return [write.op("Mul", write.op("Mul", x, write.real(0.5, "half")), share)]


def _quick_gelu(write: Writer) -> list[ir.Value] | str:
    x, alpha = write.input(), number(write.node, "alpha", 1.702)
    steep = x if alpha == 1.0 else write.op("Mul", x, write.real(alpha, "alpha"))
    return [write.op("Mul", x, write.op("Sigmoid", steep))]


def _skip_norm(write: Writer) -> list[ir.Value] | str:
    """Layer normalization of input + skip (+ bias); the sum is the fourth output."""
    return _of_sum(write, bias=4, norm=lambda total: _layer_norm(write, total, 2, 3))


def _skip_rms(write: Writer) -> list[ir.Value] | str:
    """The same with the root of the mean square."""

    def norm(total: ir.Value) -> ir.Value:
        mean = write.op("ReduceMean", write.op("Pow", total, write.real(2.0, "two")), write.axis(-1))
        shifted = write.op("Add", mean, write.real(number(write.node, "epsilon", EPSILON), "epsilon"))
        return write.op("Mul", write.op("Div", total, write.op("Sqrt", shifted)), write.input(2))

    return _of_sum(write, bias=3, norm=norm)


def _of_sum(write: Writer, bias: int, norm: Callable[[ir.Value], ir.Value]) -> list[ir.Value] | str:
    if any(value.uses() or value.is_graph_output() for value in write.node.outputs[1:3]):
        return "its mean or deviation is read"
    total, more = write.op("Add", write.input(), write.input(1)), write.optional(bias)
    if more is not None:
        total = write.op("Add", total, more)
    return [norm(total), total, total, total]


def _layer_norm(write: Writer, value: ir.Value, scale: int, bias: int) -> ir.Value:
    epsilon = number(write.node, "epsilon", EPSILON)
    return write.op("LayerNormalization", value, write.input(scale), write.optional(bias), axis=-1, epsilon=epsilon)


def _embed_norm(write: Writer) -> list[ir.Value] | str:
    """Layer normalization of the sum of the embeddings of words, positions and segments; the number of words."""
    words, segments, mask, positions = write.input(), write.optional(1), write.optional(7), write.optional(8)
    if mask is not None and integer(write.node, "mask_index_type", 1) != 1:
        return "the kind of its mask is not known"
    if positions is None:
        positions = _places(write, words)
    total = write.op("Add", write.op("Gather", write.input(2), words), write.op("Gather", write.input(3), positions))
    if segments is not None:
        total = write.op("Add", total, write.op("Gather", write.input(4), segments))
    if mask is None:
        counted = write.op("Mul", words, write.constant(np.array(0, np.int32), "none"))
    else:
        is_word = write.op("Equal", mask, write.constant(np.array(1, np.int32), "word"))
        counted = write.op("Cast", is_word, to=ir.DataType.INT32.value)
    return [_layer_norm(write, total, 5, 6), write.op("ReduceSum", counted, write.axis(1), keepdims=0), total]


def _attention(write: Writer) -> list[ir.Value] | str:
    """A product with the joined weights, split into queries, keys and values for MultiHeadAttention."""
    node, weights = write.node, static(write.input(1))
    cached = any(write.optional(index) is not None for index in (4, 6))
    if cached or any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
        return "it attends to a cache"
    if weights is None or integer(node, "do_rotary", 0) or not _has_known_mask(write):
        return "its weights, positions or mask have a form of their own"
    joined = write.op("MatMul", write.input(), write.input(1))
    if (bias := write.optional(2)) is not None:
        joined = write.op("Add", joined, bias)
    sizes = integers(node, "qkv_hidden_sizes", [weights[1] // 3] * 3)
    parts = write.ops("Split", 3, joined, write.constant(np.array(sizes), "sizes"), axis=-1)
    attributes = {n: a.value for n, a in node.attributes.items() if n in ("num_heads", "scale", "mask_filter_value")}
    attributes["unidirectional"] = integer(node, "unidirectional", 0)
    inputs = [*parts, None, _padding_mask(write), write.optional(5)]
    return [write.op("MultiHeadAttention", *inputs, domain=DOMAIN, **attributes)]


def _has_known_mask(write: Writer) -> bool:
    """None at all, one number for each word, or the number of words of each sample."""
    mask, x = write.optional(3), write.input()
    if mask is None or rank(mask) == 2:
        return True
    is_one_each = x.shape is not None and mask.shape is not None and same_size(mask.shape[0], x.shape[0])
    return rank(mask) == 1 and (is_one_each or _counts_words(mask))


def _counts_words(mask: ir.Value) -> bool:
    """Whether it is the sum of a mask over its words, as ONNX Runtime's optimizer writes it.

    Where the words' own sizes are not known, this says what shapes do not.
    """
    node = producer(mask, "ReduceSum")
    axes = None if node is None else constant(input_of(node, 1))
    return node is not None and rank(node.inputs[0]) == 2 and axes is not None and axes.tolist() in ([1], [-1])


def _padding_mask(write: Writer) -> ir.Value | None:
    """One number for each word, 0 where it does not count."""
    mask = write.optional(3)
    if mask is None or rank(mask) == 2:
        return mask
    inside = write.op("Less", _places(write, write.input()), write.op("Unsqueeze", mask, write.axis(1)))
    return write.op("Cast", inside, to=ir.DataType.INT32.value)


def _places(write: Writer, words: ir.Value) -> ir.Value:
    """0, 1, 2, … along the second axis of a value, in int32."""
    length = write.op("Gather", write.op("Shape", words), write.constant(np.array(1), "second"))
    bounds = write.constant(np.array(0), "start"), length, write.constant(np.array(1), "step")
    return write.op("Cast", write.op("Range", *bounds), to=ir.DataType.INT32.value)


RULES: dict[str, Rule] = {
    "Attention": _attention,
    "BiasGelu": _gelu,
    "EmbedLayerNormalization": _embed_norm,
    "FastGelu": _fast_gelu,
    "FusedConv": _conv,
    "FusedGemm": _gemm,
    "FusedMatMul": _matmul,
    "Gelu": _gelu,
    "QuickGelu": _quick_gelu,
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_rms,
}
