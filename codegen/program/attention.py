"""ONNX Runtime's MultiHeadAttention as a function of operators that have kernels.

softmax(scale · q kᵀ + bias + mask) v for each head: the mask has `mask_filter_value` where a word does not count, and
causal attention looks at no later word. With caches, keys and values of earlier words come first.
"""

import onnx_ir as ir

from ptqc.ir.nodes import input_of, integer, number, rank
from ptqc.ir.operators.layers import MICROSOFT

WORDS = 3  # the rank of (batch, words, heads · width)
PARTS, BIAS, MASK, ADDED, CACHES, SHARED = (0, 1, 2), 3, 4, 5, (6, 7), (8, 9)
OUTPUTS = ("y", "present_keys", "present_values")
PRESENTS = ("present_keys = Identity(k_all)", "present_values = Identity(v_all)")
FILTER = -10000.0  # of a mask, where none is stated
HEADS = """heads = Constant <value_ints = [0, 0, {heads}, -1]> ()
    q_split = Reshape(q, heads) q_heads = Transpose <perm = [0, 2, 1, 3]> (q_split)
    k_split = Reshape(k, heads) k_new = Transpose <perm = [0, 2, 1, 3]> (k_split)
    v_split = Reshape(v, heads) v_new = Transpose <perm = [0, 2, 1, 3]> (v_split)
    {cached}
    k_turned = Transpose <perm = [0, 1, 3, 2]> (k_all) products = MatMul(q_heads, k_turned)"""
BEHIND = "k_all = Concat <axis = 2> (past_keys, k_new) v_all = Concat <axis = 2> (past_values, v_new)"
ALONE = "k_all = Identity(k_new) v_all = Identity(v_new)"
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
    words = Shape <start = 1, end = 2> (queries) count = Squeeze(words)
    others = Shape <start = 2, end = 3> (k_all) other_count = Squeeze(others)
    {first}
    places = Range(first, end, one)
    other_places = Range(zero, other_count, one) column = Unsqueeze(places, last)
    is_before = LessOrEqual(other_places, column)
    later = Constant <value_float = -3.4028234663852886e38> () scores = Where(is_before, masked, later)"""
BEHIND_PAST = "pasts = Shape <start = 2, end = 3> (past_keys) first = Squeeze(pasts) end = Add(first, count)"
FROM_START = "first = Identity(zero) end = Identity(count)"
NOT_CAUSAL = "scores = Identity(masked)"
MIXED = """weights = Softmax <axis = -1> (scores) mixed = MatMul(weights, v_all)
    turned = Transpose <perm = [0, 2, 1, 3]> (mixed)
    flat = Constant <value_ints = [0, 0, -1]> () y = Reshape(turned, flat)"""


def is_attention(node: ir.Node) -> bool:
    """Whether it is a MultiHeadAttention whose parts are apart, and whose caches, if any, grow."""
    if node.domain != MICROSOFT or node.op_type != "MultiHeadAttention":
        return False
    caches = [input_of(node, place) is not None for place in CACHES]
    is_shared = any(input_of(node, place) is not None for place in SHARED)
    mask = input_of(node, MASK)
    is_packed = any((part := input_of(node, place)) is None or rank(part) != WORDS for place in PARTS)
    is_known = len(outputs_of(node)) <= len(OUTPUTS) and all(caches) == any(caches)
    return is_known and not (is_shared or is_packed) and (mask is None or rank(mask) == 2)


def outputs_of(node: ir.Node) -> list[ir.Value]:
    """Those up to the last that anything reads."""
    read = [bool(value.name and (value.uses() or value.is_graph_output())) for value in node.outputs]
    return list(node.outputs[: max((place + 1 for place, is_read in enumerate(read) if is_read), default=1)])


def definition(node: ir.Node) -> str:
    """What it computes, in ONNX's text form: a function of the inputs that it has."""
    inputs = {"bias": BIAS, "mask": MASK, "added": ADDED, "past_keys": CACHES[0], "past_values": CACHES[1]}
    named = [name for name, place in inputs.items() if input_of(node, place) is not None]
    scale, has_past = number(node, "scale", 0.0), "past_keys" in named
    returned = OUTPUTS[: len(outputs_of(node))]
    body = (
        WITH_BIAS if "bias" in named else WITHOUT_BIAS,
        HEADS.format(heads=integer(node, "num_heads", 1), cached=BEHIND if has_past else ALONE),
        STATED.format(scale=scale) if scale else USUAL,
        WITH_ADDED if "added" in named else WITHOUT_ADDED,
        WITH_MASK.format(filter=number(node, "mask_filter_value", FILTER)) if "mask" in named else WITHOUT_MASK,
        CAUSAL.format(first=BEHIND_PAST if has_past else FROM_START)
        if integer(node, "unidirectional", 0)
        else NOT_CAUSAL,
        MIXED,
    )
    taken = ", ".join(("queries", "keys", "values", *named))
    written = " ".join((*body, *PRESENTS[: len(returned) - 1]))
    return f"({taken}) => ({', '.join(returned)}) {{ {written} }}"
