"""ONNX Runtime's MultiHeadAttention as a function of operators that have kernels.

softmax(scale · q kᵀ + bias + mask) v for each head: the mask has `mask_filter_value` where a word does not count, and
causal attention looks at no later word.
"""

import onnx_ir as ir

from ptqc.graph.nodes import input_of, integer, number, rank
from ptqc.operators.layers import MICROSOFT

WORDS = 3  # the rank of (batch, words, heads · width)
PARTS, BIAS, MASK, ADDED, CACHES = (0, 1, 2), 3, 4, 5, (6, 7)
FILTER = -10000.0  # of a mask, where none is stated
HEADS = """heads = Constant <value_ints = [0, 0, {heads}, -1]> ()
    q_split = Reshape(q, heads) q_heads = Transpose <perm = [0, 2, 1, 3]> (q_split)
    k_split = Reshape(k, heads) k_heads = Transpose <perm = [0, 2, 3, 1]> (k_split)
    v_split = Reshape(v, heads) v_heads = Transpose <perm = [0, 2, 1, 3]> (v_split)
    products = MatMul(q_heads, k_heads)"""
STATED = "factor = Constant <value_float = {scale}> () plain = Mul(products, factor)"
USUAL = """width = Shape <start = 3> (q_heads) real_width = Cast <to = 1> (width) root = Sqrt(real_width)
    plain = Div(products, root)"""
WITH_BIAS = """q_width = Shape <start = 2> (queries) k_width = Shape <start = 2> (keys)
    v_width = Shape <start = 2> (values)
    widths = Concat <axis = 0> (q_width, k_width, v_width) q_bias, k_bias, v_bias = Split <axis = 0> (bias, widths)
    q = Add(queries, q_bias) k = Add(keys, k_bias) v = Add(values, v_bias)"""
WITHOUT_BIAS = "q = Identity(queries) k = Identity(keys) v = Identity(values)"
WITH_ADDED = "shifted = Add(plain, added)"
WITHOUT_ADDED = "shifted = Identity(plain)"
WITH_MASK = """counts = Cast <to = 9> (mask) seen = Constant <value_float = 0.0> ()
    unseen = Constant <value_float = {filter}> () hidden = Where(counts, seen, unseen)
    ones = Constant <value_ints = [1, 2]> () hidden_all = Unsqueeze(hidden, ones) masked = Add(shifted, hidden_all)"""
WITHOUT_MASK = "masked = Identity(shifted)"
CAUSAL = """zero = Constant <value_int = 0> () one = Constant <value_int = 1> () last = Constant <value_ints = [1]> ()
    words = Shape <start = 1, end = 2> (queries) count = Squeeze(words) places = Range(zero, count, one)
    others = Shape <start = 1, end = 2> (keys) other_count = Squeeze(others)
    other_places = Range(zero, other_count, one) column = Unsqueeze(places, last)
    is_before = LessOrEqual(other_places, column)
    later = Constant <value_float = -3.4028234663852886e38> () scores = Where(is_before, masked, later)"""
NOT_CAUSAL = "scores = Identity(masked)"
MIXED = """weights = Softmax <axis = -1> (scores) mixed = MatMul(weights, v_heads)
    turned = Transpose <perm = [0, 2, 1, 3]> (mixed)
    flat = Constant <value_ints = [0, 0, -1]> () y = Reshape(turned, flat)"""


def is_attention(node: ir.Node) -> bool:
    """Whether it is a MultiHeadAttention of one text as a whole, neither packed nor with a cache."""
    if node.domain != MICROSOFT or node.op_type != "MultiHeadAttention":
        return False
    has_cache = any(input_of(node, place) is not None for place in CACHES)
    gives_cache = any(value.name and (value.uses() or value.is_graph_output()) for value in node.outputs[1:])
    mask = input_of(node, MASK)
    is_packed = any((part := input_of(node, place)) is None or rank(part) != WORDS for place in PARTS)
    return not (has_cache or gives_cache or is_packed) and (mask is None or rank(mask) == 2)


def definition(node: ir.Node) -> str:
    """What it computes, in ONNX's text form: a function of the inputs that it has."""
    given = {"bias": BIAS, "mask": MASK, "added": ADDED}
    named = [name for name, place in given.items() if input_of(node, place) is not None]
    scale = number(node, "scale", 0.0)
    body = (
        WITH_BIAS if "bias" in named else WITHOUT_BIAS,
        HEADS.format(heads=integer(node, "num_heads", 1)),
        STATED.format(scale=scale) if scale else USUAL,
        WITH_ADDED if "added" in named else WITHOUT_ADDED,
        WITH_MASK.format(filter=number(node, "mask_filter_value", FILTER)) if "mask" in named else WITHOUT_MASK,
        CAUSAL if integer(node, "unidirectional", 0) else NOT_CAUSAL,
        MIXED,
    )
    return f"({', '.join(('queries', 'keys', 'values', *named))}) => (y) {{ {' '.join(body)} }}"
