"""Convolutions with one input and one output channel per group: vectors run over channels."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels.backend import LayerSpec
from ptqc.codegen.kernels.families import build
from ptqc.codegen.kernels.families.functions import (
    Function,
    accuracy_with,
    composed,
    constants_of,
    family_with,
    unrounded,
)
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.writing import (
    KernelGrid,
    KernelSource,
    as_stored,
    bfloat16_instructions,
    fill,
    load,
    span,
    to_codes,
    vector,
)
from ptqc.codegen.program.constants import Arranged, IndexSource, Order, Stored
from ptqc.codegen.program.layout import BFLOAT16, Layout
from ptqc.codegen.program.program import SUM_OF_PRODUCTS, Window

LARGEST_TILE = 4


def integer(layer: LayerSpec, isa: Isa) -> KernelSource:
    """A layer of codes, which takes no epilogue; its weights are (channels, 1, *kernel)."""
    x, y, window, weights, requantization = layer.x, layer.y, layer.window, layer.weights, layer.requantization
    lanes = min(isa.lanes, window.channels)

    def settle(total: Any, channel: Any, factors: Any, zero: Any) -> Any:
        scaled = T.Cast(vector("float32", lanes), total) * factors[span(channel, lanes)]
        return to_codes(T.nearbyint(scaled) + fill(zero[0], lanes), lanes)

    constants: list[Stored] = [
        Arranged(weights.astype(np.int8), _order(window)),
        requantization.bias.astype(np.int32),
        requantization.factor.astype(np.float32),
        np.array([requantization.zero_point], np.float32),
    ]
    return build(
        "depthwise", [x], constants, y, _body(window, (x, y), lanes, settle), _operations(window), SUM_OF_PRODUCTS
    )


def real(
    x: Layout,
    y: Layout,
    window: Window,
    isa: Isa,
    weights: np.ndarray,
    bias: np.ndarray,
    functions: Sequence[Function] = (),
) -> KernelSource:
    """The same in float32. functions: of the sums, one of the other's result."""
    lanes = min(isa.lanes, window.channels)
    constants = [_order(window)(weights.astype(np.float32)), bias.astype(np.float32)]
    constants += constants_of(functions)

    def settle(total: Any, _channel: Any, *numbers: Any) -> Any:
        return as_stored(isa, y, composed(unrounded(functions, y), total, lanes, numbers), lanes)

    family = family_with("depthwise_float", functions)
    body = _body(window, (x, y), lanes, settle)

    def with_instructions(*buffers: Any) -> None:
        with bfloat16_instructions(isa, needed=y.dtype == BFLOAT16):
            body(*buffers)

    accuracy = accuracy_with(SUM_OF_PRODUCTS, functions)
    return build(family, [x], constants, y, with_instructions, _operations(window), accuracy)


def _operations(window: Window) -> int:
    return 2 * window.products * window.channels


def _order(window: Window) -> Order:
    """Taps first, channels last."""
    taps = prod(window.kernel)
    return Order((taps, window.channels), lambda place: IndexSource(place[1] * taps + place[0]))


def _body(window: Window, layouts: tuple[Layout, Layout], lanes: int, settle: Any) -> Any:
    """layouts: of input and output."""
    (operand, target), (height, width) = layouts, window.output
    dtype = "float32" if operand.values == "float32" else "int32"
    pixels = -(-width // -(-width // LARGEST_TILE))
    tiles, blocks = -(-width // pixels), -(-window.channels // lanes)

    def body(grid: KernelGrid, x: Any, w: Any, bias: Any, *buffers: Any) -> None:
        *numbers, out = buffers
        wide = vector(dtype, lanes)
        work = window.products * window.channels
        with grid.nest((height, tiles, blocks), work) as (sample, (row, tile, block)):
            column = T.Bind(T.min(tile * pixels, width - pixels))
            channel = T.Bind(T.min(block * lanes, window.channels - lanes))
            totals = grid.registers(pixels * lanes, dtype)
            for p in range(pixels):
                T.buffer_store(totals, bias[span(channel, lanes)], [span(p * lanes, lanes)])
            for ky in range(window.kernel[0]):
                for kx in range(window.kernel[1]):
                    tap = (ky * window.kernel[1] + kx) * window.channels
                    weight = T.Cast(wide, w[span(tap + channel, lanes)])
                    above = row * window.strides[0] + ky * window.dilations[0]
                    for p in range(pixels):
                        left = (column + p) * window.strides[1] + kx * window.dilations[1]
                        value = T.Cast(wide, load(operand, x, sample, operand.at(above, left, channel), lanes))
                        at = span(p * lanes, lanes)
                        T.buffer_store(totals, totals[at] + value * weight, [at])
            for p in range(pixels):
                value = settle(totals[span(p * lanes, lanes)], channel, *numbers)
                T.buffer_store(out, value, [sample, span(target.at(row, column + p, channel), lanes)])

    return body
