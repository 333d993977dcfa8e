"""Pools: the largest or the mean of a window, the mean of a whole plane. Vectors run over channels."""

from typing import Any

import numpy as np
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels.families import build
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.writing import KernelGrid, KernelSource, fill, span, to_codes, vector
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import Window


def largest(x: Layout, y: Layout, window: Window, isa: Isa) -> KernelSource:
    """The largest element of each window of a padded input (codes or real values)."""
    lanes = min(isa.widest(x.dtype), 1 << (window.channels.bit_length() - 1))
    body = _windows(x, y, window, lanes, lambda a, b: T.max(a, b), lambda value, _pixel: value)
    return build("largest", [x], [], y, body)


def average(x: Layout, y: Layout, window: Window, isa: Isa, counts: np.ndarray) -> KernelSource:
    """The sum of each window of a padded input over the count of each output pixel, in ONNX Runtime's order."""
    lanes = min(isa.lanes, window.channels)

    def settle(total: Any, pixel: Any, numbers: Any) -> Any:
        return total / fill(numbers[pixel], lanes)

    body = _windows(x, y, window, lanes, lambda a, b: a + b, settle)
    return build("average", [x], [counts.astype(np.float32)], y, body)


def mean_codes(x: Layout, y: Layout, isa: Isa, zeros: tuple[int, int], factor: float) -> KernelSource:
    """Codes of the mean of each plane (`ptqc.ir.integer_arithmetic.global_average_pool`); zeros of x and y."""
    lanes = min(isa.lanes, x.shape[0])
    wide = vector("int32", lanes)

    def settle(total: Any, numbers: Any) -> Any:
        centred = total - fill(T.Cast("int32", numbers[0]), lanes)
        scaled = T.Cast(vector("float32", lanes), centred) * fill(numbers[2], lanes)
        return to_codes(T.nearbyint(scaled) + fill(numbers[1], lanes), lanes)

    pixels = x.elements // x.shape[0]
    numbers = np.array([zeros[0] * pixels, zeros[1], factor], np.float32)
    return build("mean", [x], [numbers], y, _mean(x, lanes, wide, settle))


def mean(x: Layout, y: Layout, isa: Isa) -> KernelSource:
    """The mean of each plane in float32."""
    lanes = min(isa.lanes, x.shape[0])
    pixels = np.array([x.elements // x.shape[0]], np.float32)
    wide = vector("float32", lanes)
    return build("mean_float", [x], [pixels], y, _mean(x, lanes, wide, lambda t, n: t / fill(n[0], lanes)))


def _mean(x: Layout, lanes: int, wide: str, settle: Any) -> Any:
    channels = x.shape[0]
    dtype = wide.partition("x")[0]

    def body(grid: KernelGrid, source: Any, numbers: Any, out: Any) -> None:
        with grid.rows(-(-channels // lanes), x.elements) as (sample, block):
            channel = T.Bind(T.min(block * lanes, channels - lanes))
            total = grid.registers(lanes, dtype)
            at = span(0, lanes)
            T.buffer_store(total, fill(T.Cast(dtype, T.int32(0)), lanes), [at])
            with T.serial(x.elements // channels) as pixel:
                value = T.Cast(wide, source[sample, span(pixel * channels + channel, lanes)])
                T.buffer_store(total, total[at] + value, [at])
            T.buffer_store(out, settle(total[at], numbers), [sample, span(channel, lanes)])

    return body


def _windows(x: Layout, y: Layout, window: Window, lanes: int, combine: Any, settle: Any) -> Any:
    """Combine the elements of each window, row by row; settle(combined, pixel, *constants) is stored."""
    height, width = window.output
    blocks = -(-window.channels // lanes)

    def body(grid: KernelGrid, source: Any, *buffers: Any) -> None:
        *numbers, out = buffers
        work = window.products * window.channels
        with grid.nest((height, width, blocks), work) as (sample, (row, column, block)):
            channel = T.Bind(T.min(block * lanes, window.channels - lanes))
            value = None
            for ky in range(window.kernel[0]):
                for kx in range(window.kernel[1]):
                    above = row * window.strides[0] + ky * window.dilations[0]
                    left = column * window.strides[1] + kx * window.dilations[1]
                    result = source[sample, span(x.at(above, left, channel), lanes)]
                    value = T.Bind(result if value is None else combine(value, result))
            place = span(y.at(row, column, channel), lanes)
            T.buffer_store(out, settle(value, row * width + column, *numbers), [sample, place])

    return body
