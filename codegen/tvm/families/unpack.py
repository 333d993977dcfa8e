"""Constants from their packed form, when the library is loaded: bit planes to codes, codes to real weights."""

from typing import Any

from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.onnxruntime.planes import planes_of
from ptqc.codegen.tvm.kernel import Constant, write


def codes(bits: int, size: int) -> tuple[str, Any]:
    """Kernel from the planes of `size` codes (a multiple of 8) to int8 codes, offset by half their range."""
    widths = planes_of(bits)
    planes = [Constant("uint8", size * width // 8) for width in widths]

    def body(_batch: Any, *buffers: Any) -> None:
        *given, out = buffers
        shift = bits
        for plane, width in zip(given, widths, strict=True):
            shift -= width
            for part in range(8 // width):
                length = size * width // 8
                with T.serial(length) as index:
                    piece = T.shift_right(T.Cast("int32", plane[index]), T.int32(part * width))
                    piece = T.shift_left(T.bitwise_and(piece, T.int32(2**width - 1)), T.int32(shift))
                    place = part * length + index
                    start = T.int32(-(2 ** (bits - 1))) if shift + width == bits else T.Cast("int32", out[place])
                    T.buffer_store(out, T.Cast("int8", start + piece), [place])

    return write(f"unpack{bits}", [*planes, Constant("int8", size)], body)


def real(panels: int, depth: int, width: int) -> tuple[str, Any]:
    """Kernel from int8 codes (panels, depth, width) and scales (panels, width) to float32."""
    size = panels * depth * width

    def body(_batch: Any, given: Any, scales: Any, out: Any) -> None:
        with T.serial(panels) as panel, T.serial(depth) as k, T.serial(width) as channel:
            place = (panel * depth + k) * width + channel
            scale = scales[panel * width + channel]
            T.buffer_store(out, T.Cast("float32", given[place]) * scale, [place])

    shapes = [Constant("int8", size), Constant("float32", panels * width), Constant("float32", size)]
    return write("scale", shapes, body)
