"""Codes of a picture that comes plane by plane: many pixels at once, their channels interleaved in registers."""

from typing import Any

import numpy as np
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels import epilogue
from ptqc.codegen.kernels.families import build
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.writing import KernelGrid, KernelSource, fill, span
from ptqc.codegen.program.layout import Layout
from ptqc.runtime.lengths import varies

AXES, MOST_CHANNELS = 3, 4


def takes(x: Layout, y: Layout, isa: Isa) -> bool:
    """Whether these are planes of few channels, large enough for whole vectors."""
    if varies(x.shape):
        return False
    shaped = x.is_io and not (y.is_io or y.row_major) and len(x.shape) == AXES and x.shape[0] <= MOST_CHANNELS
    return shaped and isa.packs is not None and x.elements // x.shape[0] >= isa.widest("uint8")


def quantize(x: Layout, y: Layout, isa: Isa, scale: float, zero_point: int) -> KernelSource:
    """Codes of real values; see `takes`."""
    channels, step = x.shape[0], isa.widest("uint8")
    height, width = (x.shape[1], x.shape[2]) if y.parent_buffer is not None else (1, x.elements // channels)
    blocks = -(-width // step)

    def body(grid: KernelGrid, source: Any, numbers: Any, out: Any) -> None:
        with grid.rows(height * blocks, x.elements) as (sample, block):
            row, start = block // blocks, T.Bind(T.min(block % blocks * step, width - step))
            planes = []
            for channel in range(channels):
                place = (channel * height + row) * width + start
                values = [_steps(source, sample, place + i * isa.lanes, numbers, isa) for i in range(epilogue.PACKED)]
                codes = grid.registers(step, "uint8")
                epilogue.requantize(isa, values, numbers[1], codes, fitting=False)
                planes.append(codes[span(0, step)])
            for part in range(channels):
                place = y.at(row, start, 0) + part * step
                T.buffer_store(out, _interleaved(planes, part, step), [sample, span(place, step)])

    return build("quantize", [x], [np.array([scale, zero_point], np.float32)], y, body)


def _steps(source: Any, sample: Any, place: Any, numbers: Any, isa: Isa) -> Any:
    """Values in units of the scale."""
    return source[sample, span(place, isa.lanes)] / fill(numbers[0], isa.lanes)


def _interleaved(planes: list[Any], part: int, step: int) -> Any:
    """One of the vectors in which the channels of a pixel are neighbours."""
    channels = len(planes)
    places = range(part * step, (part + 1) * step)
    order = [place % channels * step + place // channels for place in places]
    return T.Shuffle(planes, [T.int32(index) for index in order])
