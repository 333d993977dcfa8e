"""Products with keys and values of a cache: each head read once for all its queries, as it is kept, and where it is."""

from dataclasses import dataclass

import onnx_ir as ir

from ptqc.codegen.kernels.families import kv_attention
from ptqc.codegen.kernels.families.kv_attention import CodedRows, KvRows, PairedRows, Places, RealRows
from ptqc.codegen.kernels.program_builder import ProgramBuilder
from ptqc.codegen.program.layout import Layout
from ptqc.ir.nodes import integer, integers, producer, required
from ptqc.runtime.lengths import varies

HALF_BYTE = 16.0
# Of a product with at most so many rows a head, each with at most so many channels.
MOST_ROWS, MOST_CHANNELS = 32, 256


@dataclass(frozen=True)
class _Source:
    """names: of buffers."""

    names: tuple[str, ...]
    kv: KvRows


def product(builder: ProgramBuilder, node: ir.Node) -> bool:
    """Add the kernel of a MatMul whose right operand is made of keys or values by moving them only; whether it is."""
    if builder.isa.by_element:
        return False
    value, is_moved, is_turned = _moved(builder, required(node.inputs[1]))
    if not is_moved or len(builder.sizes(value)) < 3 or builder.dtype(value) != "float32":
        return False
    places, names = _places(builder, value)
    left = builder.in_order(builder.read(node.inputs[0]))
    x, output = builder.layouts[left], node.outputs[0]
    layout = Layout(builder.shape(output), "float32", row_major=True)
    rows = kv_attention.rows_of(x if is_turned else layout, places.kv)
    if rows is None or rows > MOST_ROWS or places.kv.channels > MOST_CHANNELS:
        return False
    write = kv_attention.scores if is_turned else kv_attention.mixed
    builder.add(write(x, places, layout, builder.isa), [left, *names], str(output.name), layout)
    return True


def _moved(builder: ProgramBuilder, value: ir.Value) -> tuple[ir.Value, bool, bool]:
    """What a value is made of by repeating heads and swapping its last two axes; whether it is, and swapped."""
    is_moved = is_turned = False
    while (before := _turned(value) or _beside(value) or _repeated(builder, value)) is not None:
        is_turned ^= _turned(value) is not None
        value, is_moved = before, True
    return value, is_moved or _joined(builder, value) is not None, is_turned


def _turned(value: ir.Value) -> ir.Value | None:
    """What has the last two axes swapped."""
    node = producer(value, "Transpose")
    axes = integers(node, "perm", []) if node else []
    rank = len(axes)
    if node is None or axes != [*range(rank - 2), rank - 1, rank - 2]:
        return None
    return required(node.inputs[0])


def _beside(value: ir.Value) -> ir.Value | None:
    """What lacks an axis of size 1 in front of the last two."""
    node = producer(value, "Unsqueeze")
    if node is None or value.shape is None or required(node.inputs[0]).shape is None:
        return None
    before, after = required(node.inputs[0]).shape, value.shape
    assert before is not None
    is_one = len(after) == len(before) + 1 and after[-3] == 1 and list(after[-2:]) == list(before[-2:])
    return required(node.inputs[0]) if is_one and list(after[:-3]) == list(before[:-2]) else None


def _repeated(builder: ProgramBuilder, value: ir.Value) -> ir.Value | None:
    """What has every head once, of (…, heads · times, places, channels)."""
    joined = producer(value, "Reshape")
    wide = producer(joined.inputs[0], "Expand", "Tile") if joined else None
    single = producer(wide.inputs[0], "Unsqueeze") if wide else None
    if joined is None or wide is None or single is None:
        return None
    result = required(single.inputs[0])
    *front, heads, rows, columns = builder.sizes(result)
    if list(builder.sizes(single.outputs[0])) != [*front, heads, 1, rows, columns]:
        return None
    times = builder.sizes(wide.outputs[0])[len(front) + 1]
    is_known = list(builder.sizes(wide.outputs[0])) == [*front, heads, times, rows, columns]
    return result if is_known and list(builder.sizes(value)) == [*front, heads * times, rows, columns] else None


def _joined(builder: ProgramBuilder, value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """What is kept, and as many places behind it in every run."""
    node = producer(value, "Concat")
    rank = len(builder.sizes(value))
    if node is None or len(node.inputs) != 2 or integer(node, "axis", 0) % rank != rank - 2:
        return None
    past, new = map(required, node.inputs)
    return None if varies([builder.sizes(new)[-2]]) else (past, new)


def _places(builder: ProgramBuilder, value: ir.Value) -> tuple[Places, list[str]]:
    joined = _joined(builder, value)
    if joined is None:
        source = _real(builder, value)
        return Places(source.kv, None), list(source.names)
    past, new = (_packed(builder, joined[0]) or _real(builder, joined[0])), _real(builder, joined[1])
    assert isinstance(new.kv, RealRows)
    return Places(past.kv, new.kv), [*past.names, *new.names]


def _real(builder: ProgramBuilder, value: ir.Value) -> _Source:
    name = builder.in_order(builder.read(value))
    return _Source((name,), RealRows((builder.layouts[name],)))


def _packed(builder: ProgramBuilder, value: ir.Value) -> _Source | None:
    """Rows that a model unpacks by plain operators (`ptqc.kv_cache`): float16, or codes with a scale each."""
    if (half := _cast_of(builder, value, "float16")) is not None:
        return _real(builder, half)
    scaled = producer(value, "Mul")
    centred = producer(scaled.inputs[0], "Sub") if scaled else None
    scale = _cast_of(builder, scaled.inputs[1], "float16") if scaled else None
    if centred is None or scale is None or not builder.is_constant(centred.inputs[1]):
        return None
    middle = builder.number(centred.inputs[1])
    pairs = _parted(builder, centred.inputs[0])
    codes = pairs or _cast_of(builder, centred.inputs[0], "uint8")
    if codes is None or middle.size != 1 or list(builder.sizes(scale)) != [*builder.sizes(codes)[:-1], 1]:
        return None
    names = tuple(builder.in_order(builder.read(part)) for part in (codes, scale))
    layouts = tuple(builder.layouts[name] for name in names)
    return _Source(names, (PairedRows if pairs else CodedRows)(layouts, int(middle.item())))


def _cast_of(builder: ProgramBuilder, value: ir.Value | None, dtype: str) -> ir.Value | None:
    """What is of this type before a Cast to float32."""
    node = producer(value, "Cast")
    result = node.inputs[0] if node and builder.dtype(value) == "float32" else None
    return result if result is not None and builder.dtype(result) == dtype else None


def _parted(builder: ProgramBuilder, value: ir.Value | None) -> ir.Value | None:
    """The bytes of which the lower halves, then the upper ones are the numbers of a value."""
    both = producer(value, "Concat")
    if both is None or len(both.inputs) != 2 or integer(both, "axis", 0) not in (-1, len(builder.sizes(value)) - 1):
        return None
    low, high = producer(both.inputs[0], "Sub"), producer(both.inputs[1], "Floor")
    share = producer(high.inputs[0], "Div") if high else None
    remainder = producer(low.inputs[1], "Mul") if low else None
    if low is None or share is None or remainder is None or remainder.inputs[0] is not both.inputs[1]:
        return None
    if low.inputs[0] is not share.inputs[0] or not all(_is_half_byte(builder, n.inputs[1]) for n in (share, remainder)):
        return None
    return _cast_of(builder, share.inputs[0], "uint8")


def _is_half_byte(builder: ProgramBuilder, value: ir.Value | None) -> bool:
    return builder.is_constant(value) and builder.number(value).reshape(-1).tolist() == [HALF_BYTE]
