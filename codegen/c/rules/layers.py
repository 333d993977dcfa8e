"""Convolutions and matrix products of codes."""

from collections.abc import Callable, Sequence
from math import prod

import numpy as np
import onnx_ir as ir

from ptqc.codegen.c import packing, requantize
from ptqc.codegen.c.builder import CODES, REAL, CWindow, NetworkBuilder, rows_of
from ptqc.codegen.c.constants import real
from ptqc.codegen.c.network import SCRATCH, STRUCTURE, CTensor, Place, Step, channels_last
from ptqc.codegen.c.packing import PackedWeights
from ptqc.codegen.program.program import UnsupportedOp
from ptqc.formats import Format, QuantParams
from ptqc.formats.scales import roots as scale_roots
from ptqc.ir.integer_arithmetic import accumulator_scale, multiplier, recovered_bias
from ptqc.ir.nodes import integer
from ptqc.ir.operators.base import LoweredStep, has_float_output, input_params, layer_constants, output_params

LARGEST_CODE = 255
# Of a pointer on the machines that this is for.
POINTER = 8
# Bytes of memory for what is computed of a channel while its sums are.
CHANNEL = 8
# Below these, unpacking a weight takes longer than multiplying it.
FEW_PIXELS = 8
# Channels of which a kernel reads such numbers at once.
VECTOR = 16


def _starts(weights: np.ndarray, bias: np.ndarray | None, zero: int) -> np.ndarray:
    """The bias of Σ x·w that stands for Σ (x − zero)·w. Raises UnsupportedOp beyond int32."""
    rows = weights.reshape(len(weights), -1).astype(np.int64)
    result: np.ndarray = -rows.sum(1) * zero if bias is None else bias.astype(np.int64) - rows.sum(1) * zero
    if (np.abs(result) + np.abs(rows).sum(1) * LARGEST_CODE >= 2**31).any():
        raise UnsupportedOp("its sums may exceed 32 bits")
    return result


def _is_exact(weights: np.ndarray, starts: np.ndarray, factor: np.ndarray, zero: int) -> bool:
    """Whether whole numbers alone give the codes of all sums that these weights can give."""
    rows = weights.reshape(len(weights), -1).astype(np.int64) * LARGEST_CODE
    least, most = starts + np.minimum(rows, 0).sum(1), starts + np.maximum(rows, 0).sum(1)
    return requantize.is_exact(np.broadcast_to(factor, (len(weights),)), least, most, zero)


def _form(builder: NetworkBuilder, node: ir.Node) -> Format | None:
    maker = node.inputs[1].producer() if node.inputs[1] is not None else None
    return builder.lowered.formats.get(str(maker.inputs[0].name)) if maker is not None and maker.inputs[0] else None


def conv(builder: NetworkBuilder, step: LoweredStep) -> None:
    """A convolution of codes that gives codes."""
    weights, scale, bias = layer_constants(step)
    x, y = input_params(step), output_params(step)
    groups = integer(step.node, "group", 1)
    source = builder.image(builder.codes(step.inputs[0]))
    shape = builder.shapes[str(step.node.outputs[0].name)]
    window = builder.window(source, shape, step.node, weights.shape[2:])
    target = builder.new(step.output, shape, CODES, channels_last(len(shape)))
    layer = _Layer(builder, step.node, weights, scale, bias, (x, y))
    if groups == len(weights) > 1 == weights.shape[1]:
        builder.add(layer.depthwise(source, target, window, step.output), "Conv")
    else:
        builder.add(layer.dense(source, target, window, step.output, groups), "Conv")


def product(builder: NetworkBuilder, step: LoweredStep) -> None:
    """A product of codes with a matrix, which gives codes or real values."""
    weights, scale, bias = layer_constants(step)
    if integer(step.node, "transB", 0) == 0:
        weights = weights.T
    x, is_real = input_params(step), has_float_output(step)
    y = None if is_real else output_params(step)
    source = builder.plain(builder.codes(step.inputs[0]))
    target = builder.output(step.node.outputs[0], REAL if is_real else CODES, name=step.output)
    layer = _Layer(builder, step.node, weights, scale, bias, (x, y))
    builder.add(layer.dense(source, target, rows_of(source, len(weights)), step.output, 1), step.kind)


class _Layer:
    """The constants of a layer on codes. ends: parameters of its input and output; None of a real output."""

    def __init__(
        self,
        builder: NetworkBuilder,
        node: ir.Node,
        weights: np.ndarray,
        scale: np.ndarray,
        bias: np.ndarray | None,
        ends: tuple[QuantParams, QuantParams | None],
    ) -> None:
        self.constants, self.form = builder.network.constants, _form(builder, node)
        self.is_stream = builder.network.stream is not None
        self.weights, self.scale, self.bias = weights, scale.reshape(-1).astype(np.float32), bias
        self.x, self.y = ends
        starts = _starts(weights, bias, self.x.zero_point)
        self.is_exact = self.y is None or _is_exact(
            weights, starts, multiplier(self.x, self.scale, self.y), self.y.zero_point
        )

    def channels(self, row_sums: np.ndarray | None) -> str:
        """The initializer of `struct channels`."""
        sums = "0" if row_sums is None else self.constants.add(row_sums, "sums")
        roots, scales, unit = "0", "0", np.float32(0)
        squares = scale_roots(self.scale)
        if squares is None:
            scales = self.constants.add(self.scale, "scales")
        else:
            unit = np.float32(squares[1])
            roots = self.constants.add(squares[0], "roots")
        bias, bias_unit, size = "0", np.float32(0), 0
        if self.bias is not None and self.bias.any():
            stored = recovered_bias(self.bias, accumulator_scale(self.x, np.broadcast_to(self.scale, self.bias.shape)))
            array, bias_unit = (self.bias.astype(np.int32), bias_unit) if stored is None else stored
            bias, size = self.constants.add(array, "bias"), array.dtype.itemsize
        is_shared = int(self.scale.size == 1)
        out, zero = (0.0, 0) if self.y is None else (self.y.scale, self.y.zero_point)
        numbers = ", ".join(real(float(each)) for each in (unit, bias_unit, self.x.scale, out))
        whole = ", ".join(map(str, (size, is_shared, self.x.zero_point, zero, int(self.is_exact))))
        return f"{{{sums}, {roots}, {scales}, {bias}, {numbers}, {whole}}}"

    def dense(self, source: CTensor, target: CTensor, window: CWindow, value: str, groups: int) -> Step:
        """A convolution or matrix product."""
        weights = packing.of_layer(self.weights)
        # In a call for a few frames, a weight meets as few pixels as that of a matrix.
        is_matrix = self.weights.ndim == 2 or (self.is_stream and prod(window.output[:2]) <= FEW_PIXELS)
        packed = packing.packed(weights, self.form, window.taps, is_matrix=is_matrix)
        channels = self.channels(packing.row_sums(weights if is_matrix else self.weights, packed))
        begin, rows = f"{self.constants.weights(packed)}, {channels}", len(self.weights) // groups
        sizes, geometry = window.fields("source", "output"), window.fields("padding", "size", "strides", "dilations")
        is_pointwise = window.is_pointwise

        def structure(panel: int) -> str:
            return f"{{{begin}, {sizes}, {groups}, {panel}, {geometry}, {int(is_pointwise)}}}"

        def scratch(panel: int) -> int:
            columns = 0 if is_pointwise else 2 * packed.row
            return panel * CHANNEL + columns + packed.unpacked(panel)

        return self._step(
            "dense",
            source,
            target,
            window,
            value,
            packed,
            structure,
            scratch,
            _panels(rows, 16 if packed.is_raw else 2 if is_matrix else 4, 4),
        )

    def depthwise(self, source: CTensor, target: CTensor, window: CWindow, value: str) -> Step:
        """A convolution of each channel for itself."""
        rows = packing.of_layer(self.weights)
        packed = packing.packed(rows, self.form)
        if packed.is_raw:  # as (tap, channel)
            packed = packing.raw(np.ascontiguousarray(rows.T))
        begin = f"{self.constants.weights(packed)}, {self.channels(None)}"
        sizes, geometry = window.fields("source", "output"), window.fields("padding", "size", "strides", "dilations")

        def structure(block: int) -> str:
            return f"{{{begin}, {sizes}, {block}, {geometry}}}"

        def scratch(block: int) -> int:
            panel = 0 if packed.is_raw else block * window.taps + packed.unpacked(1)
            wide = -(-block // VECTOR) * VECTOR
            return POINTER * window.taps + wide * CHANNEL + block + panel

        blocks = _panels(len(rows), VECTOR, VECTOR)
        return self._step("depthwise", source, target, window, value, packed, structure, scratch, blocks)

    def _step(
        self,
        function: str,
        source: CTensor,
        target: CTensor,
        window: CWindow,
        value: str,
        packed: PackedWeights,
        structure: Callable[[int], str],
        scratch: Callable[[int], int],
        panels: Sequence[int],
    ) -> Step:
        return Step(
            function,
            [STRUCTURE, Place(source.buffer), Place(target.buffer), SCRATCH],
            [source.buffer],
            [target.buffer],
            value,
            target,
            panels=panels,
            structure=structure,
            scratch=scratch,
            products=self.weights.size * prod(window.output[:2]),
            kinds=[packed.kind],
        )


def _panels(rows: int, least: int, step: int) -> list[int]:
    """How many rows may be unpacked at a time."""
    return sorted({min(rows, least), *range(max(least, step), rows, step), rows})
