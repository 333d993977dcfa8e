"""RotaryEmbedding of whole heads as a function of operators that have kernels.

(a, b) becomes (a cos − b sin, a sin + b cos) for each pair of a head. ONNX's own definition splits off what is not
turned, which has no elements where all of a head is.
"""

import onnx_ir as ir

from ptqc.ir.nodes import input_of, integer, rank

HEADS, WORDS = 4, 3  # ranks of (batch, heads, words, width) and (batch, words, heads · width)
PLACES = 3
BODY = """{turns} where = Constant <value_ints = [{apart}, {pair}]> ()
    cos = Unsqueeze(c, where) sin = Unsqueeze(s, where)
    split = Constant <value_ints = [{split}]> () pairs = Reshape(x, split)
    a, b = Split <axis = {pair}, num_outputs = 2> (pairs)
    a_cos = Mul(a, cos) b_sin = Mul(b, sin) first = Sub(a_cos, b_sin)
    a_sin = Mul(a, sin) b_cos = Mul(b, cos) second = Add(a_sin, b_cos)
    turned = Concat <axis = {pair}> (first, second)
    flat = Constant <value_ints = [{flat}]> () y = Reshape(turned, flat)"""
AT_PLACES = "c = Gather(cosines, places) s = Gather(sines, places)"
IN_ORDER = "c = Identity(cosines) s = Identity(sines)"


def is_whole(node: ir.Node) -> bool:
    """Whether it is ONNX's own and turns all of each head."""
    is_own = not node.domain and node.op_type == "RotaryEmbedding" and not integer(node, "rotary_embedding_dim", 0)
    return is_own and rank(input_of(node, 0)) in (HEADS, WORDS)


def definition(node: ir.Node) -> str:
    """What it computes, in ONNX's text form: a function of the inputs that it has."""
    are_words, has_places = rank(input_of(node, 0)) == WORDS, input_of(node, PLACES) is not None
    heads = f"0, 0, {integer(node, 'num_heads', 0)}" if are_words else "0, 0, 0"
    is_interleaved = bool(integer(node, "interleaved", 0))
    body = BODY.format(
        turns=AT_PLACES if has_places else IN_ORDER,
        apart=2 if are_words else 1,
        pair=4 if is_interleaved else 3,
        split=f"{heads}, -1, 2" if is_interleaved else f"{heads}, 2, -1",
        flat="0, 0, -1" if are_words else "0, 0, 0, -1",
    )
    return f"(x, cosines, sines{', places' if has_places else ''}) => (y) {{ {body} }}"
