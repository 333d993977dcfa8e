"""ONNX Runtime's GroupQueryAttention as a function of operators that have kernels.

softmax(scale · q kᵀ) v, where several heads of queries share one of keys and values. Keys and values of T new words
come behind those of earlier ones, or into their places where the cache has a fixed size; word i of text b is at place
p = seqlens_k[b] + 1 − T + i, looks at no later place, and is turned by that place where positions are rotary. Queries,
keys and values may be one tensor.
"""

import onnx_ir as ir

from ptqc.codegen.program.attention import BEHIND, OUTPUTS, PRESENTS, outputs_of
from ptqc.ir.nodes import input_of, integer, number, rank
from ptqc.ir.operators.layers import MICROSOFT

WORDS = 3  # the rank of (batch, words, heads · width)
QUERIES, KEYS, VALUES, PAST, LENGTHS, TABLES, PLACES, ADDED = 0, 1, 2, (3, 4), 5, (7, 8), 9, 10
# Sinks, scales of quantized caches and what else may follow.
OTHERS = 11
# Attributes that change what is computed, with the value that does not.
USUAL = {"local_window_size": -1, "smooth_softmax": 0, "qk_output": 0, "kv_cache_bit_width": 0}
PARTS = """sizes = Constant <value_ints = [{queries}, {keys}, {keys}]> ()
    q, k, v = Split <axis = 2> (queries, sizes)"""
APART = "q = Identity(queries) k = Identity(keys) v = Identity(values)"
HEADS = """q_sizes = Constant <value_ints = [0, 0, {heads}, {width}]> () q_split = Reshape(q, q_sizes)
    k_sizes = Constant <value_ints = [0, 0, {shared}, {width}]> ()
    k_split = Reshape(k, k_sizes) v_split = Reshape(v, k_sizes)
    zero = Constant <value_int = 0> () one = Constant <value_int = 1> () last = Constant <value_ints = [1]> ()
    word_count = Shape <start = 1, end = 2> (queries) count = Squeeze(word_count)
    ends = Cast <to = 7> (lengths) flat = Constant <value_ints = [-1, 1]> () end_column = Reshape(ends, flat)
    past_end = Add(end_column, one) start_found = Sub(past_end, count) start = Max(start_found, zero)
    words = Range(zero, count, one) word_places = Add(start, words)"""
TURNED = """{places} where = Constant <value_ints = [2]> ()
    c_rows = Gather(cosines, turned_places) c = Unsqueeze(c_rows, where)
    s_rows = Gather(sines, turned_places) s = Unsqueeze(s_rows, where)
    {q} {k}"""
TURN = """{x}_ac = Mul({x}_a, c) {x}_bs = Mul({x}_b, s) {x}_first = Sub({x}_ac, {x}_bs)
    {x}_as = Mul({x}_a, s) {x}_bc = Mul({x}_b, c) {x}_second = Add({x}_as, {x}_bc)"""
HALVES = (
    "{x}_a, {x}_b = Split <axis = 3, num_outputs = 2> ({x}_split) "
    + TURN
    + " {x}_turned = Concat <axis = 3> ({x}_first, {x}_second)"
)
NEIGHBOURS = (
    """{x}_pair_sizes = Constant <value_ints = [0, 0, {count}, -1, 2]> ()
    {x}_pairs = Reshape({x}_split, {x}_pair_sizes)
    {x}_a = Gather <axis = 4> ({x}_pairs, zero) {x}_b = Gather <axis = 4> ({x}_pairs, one) """
    + TURN
    + """ {x}_behind = Constant <value_ints = [4]> ()
    {x}_one = Unsqueeze({x}_first, {x}_behind) {x}_two = Unsqueeze({x}_second, {x}_behind)
    {x}_both = Concat <axis = 4> ({x}_one, {x}_two) {x}_turned = Reshape({x}_both, {x}_sizes)"""
)
STILL = "q_turned = Identity(q_split) k_turned = Identity(k_split)"
NEW = """q_heads = Transpose <perm = [0, 2, 1, 3]> (q_turned)
    k_new = Transpose <perm = [0, 2, 1, 3]> (k_turned) v_new = Transpose <perm = [0, 2, 1, 3]> (v_split)"""
IN_PLACE = """room = Shape <start = 2, end = 3> (past_keys) room_count = Squeeze(room)
    rooms = Range(zero, room_count, one) is_here = Equal(rooms, start)
    here_sizes = Constant <value_ints = [1, 3]> () here = Unsqueeze(is_here, here_sizes)
    k_all = Where(here, k_new, past_keys) v_all = Where(here, v_new, past_values)"""
# Every head of keys for its queries: (batch, shared, heads / shared · words, width), which needs no copies.
SCORES = """grouped = Constant <value_ints = [0, {shared}, {ratio}, -1, {width}]> ()
    q_groups = Reshape(q_heads, grouped)
    group_axis = Constant <value_ints = [2]> ()
    k_across = Transpose <perm = [0, 1, 3, 2]> (k_all) k_groups = Unsqueeze(k_across, group_axis)
    v_groups = Unsqueeze(v_all, group_axis)
    products = MatMul(q_groups, k_groups) factor = Constant <value_float = {scale}> () plain = Mul(products, factor)"""
CAPPED = """cap = Constant <value_float = {cap}> () cap_share = Div(plain, cap) cap_tanh = Tanh(cap_share)
    capped = Mul(cap_tanh, cap)"""
FREE = "capped = Identity(plain)"
WITH_ADDED = "added_groups = Unsqueeze(added, group_axis) shifted = Add(capped, added_groups)"
WITH_ADDED_HEADS = """added_sizes = Constant <value_ints = [0, {shared}, {ratio}, 0, -1]> ()
    added_groups = Reshape(added, added_sizes) shifted = Add(capped, added_groups)"""
WITHOUT_ADDED = "shifted = Identity(capped)"
SEEN = """others = Shape <start = 2, end = 3> (k_all) other_count = Squeeze(others)
    other_places = Range(zero, other_count, one) columns = Constant <value_ints = [1, 2, 4]> ()
    column = Unsqueeze(word_places, columns) is_before = LessOrEqual(other_places, column)
    later = Constant <value_float = -3.4028234663852886e38> () scores = Where(is_before, shifted, later)
    weights = Softmax <axis = -1> (scores) mixed = MatMul(weights, v_groups)
    joined = Constant <value_ints = [0, {heads}, -1, {width}]> () mixed_heads = Reshape(mixed, joined)
    turned = Transpose <perm = [0, 2, 1, 3]> (mixed_heads)
    flat_words = Constant <value_ints = [0, 0, {all}]> () y = Reshape(turned, flat_words)"""


def is_grouped(node: ir.Node) -> bool:
    """Whether it is a GroupQueryAttention of float caches that looks at all earlier words."""
    if node.domain != MICROSOFT or node.op_type != "GroupQueryAttention":
        return False
    past = [input_of(node, place) for place in PAST]
    is_usual = all(integer(node, name, value) == value for name, value in USUAL.items())
    has_more = any(value is not None for value in node.inputs[OTHERS:])
    is_known = None not in past and rank(input_of(node, QUERIES)) == WORDS and _width(node) is not None
    return is_known and is_usual and not has_more and _turns_whole(node) and (not _in_place(node) or _words(node) == 1)


def _size(value: ir.Value | None, axis: int) -> int | None:
    if value is None or value.shape is None:
        return None
    size = value.shape[axis]
    return size if isinstance(size, int) else None


def _width(node: ir.Node) -> int | None:
    return _size(input_of(node, PAST[0]), 3)


def _words(node: ir.Node) -> int | None:
    return _size(input_of(node, QUERIES), 1)


def _in_place(node: ir.Node) -> bool:
    """Whether the cache has a fixed size: it goes out as large as it came in."""
    outputs = node.outputs[1:2]
    sizes = [_size(value, 2) for value in (input_of(node, PAST[0]), *outputs)]
    return len(sizes) == 2 and sizes[0] is not None and sizes[0] == sizes[1]


def _turns_whole(node: ir.Node) -> bool:
    """Whether rotary positions, if any, turn all of a head."""
    if not integer(node, "do_rotary", 0):
        return True
    width, pairs = _width(node), _size(input_of(node, TABLES[0]), 1)
    return width is not None and pairs is not None and 2 * pairs == width


def definition(node: ir.Node) -> str:
    """What it computes, in ONNX's text form: a function of the inputs that it has."""
    heads, shared, width = integer(node, "num_heads", 1), integer(node, "kv_num_heads", 1), _width(node)
    assert width is not None
    sizes = {"heads": heads, "shared": shared, "width": width, "ratio": heads // shared, "all": heads * width}
    is_apart, added = input_of(node, KEYS) is not None, input_of(node, ADDED)
    cap, scale = number(node, "softcap", 0.0), number(node, "scale", 0.0) or width**-0.5
    body = (
        APART if is_apart else PARTS.format(queries=heads * width, keys=shared * width),
        HEADS.format(**sizes),
        _turned(node, heads, shared) if integer(node, "do_rotary", 0) else STILL,
        NEW,
        IN_PLACE if _in_place(node) else BEHIND,
        SCORES.format(**sizes, scale=scale),
        CAPPED.format(cap=cap) if cap else FREE,
        _with_added(added, sizes),
        SEEN.format(**sizes),
        *PRESENTS[: len(outputs_of(node)) - 1],
    )
    named = ", ".join(name for name, place in _names(node) if input_of(node, place) is not None)
    return f"({named}) => ({', '.join(OUTPUTS[: len(outputs_of(node))])}) {{ {' '.join(body)} }}"


def _names(node: ir.Node) -> list[tuple[str, int]]:
    """Of the function's inputs, with their places."""
    names = ("queries", "keys", "values", "past_keys", "past_values", "lengths", "total", "cosines", "sines", "places")
    return [*((name, place) for place, name in enumerate(names)), ("added", ADDED)][: len(node.inputs)]


def _turned(node: ir.Node, heads: int, shared: int) -> str:
    """Queries and keys turned by the places of their words."""
    has_places = input_of(node, PLACES) is not None
    form = NEIGHBOURS if integer(node, "rotary_interleaved", 0) else HALVES
    q, k = (form.format(x=x, count=count) for x, count in (("q", heads), ("k", shared)))
    return TURNED.format(places=f"turned_places = Identity({'places' if has_places else 'word_places'})", q=q, k=k)


def _with_added(added: ir.Value | None, sizes: dict[str, int]) -> str:
    """Scores that are added, for all heads or for each."""
    if added is None:
        return WITHOUT_ADDED
    return WITH_ADDED if _size(added, 1) == 1 else WITH_ADDED_HEADS.format(**sizes)
