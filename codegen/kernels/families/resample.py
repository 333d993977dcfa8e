"""Elements along one axis as weighted sums of a few elements along it: resizing by interpolation."""

from typing import Any

import numpy as np
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels.families import build
from ptqc.codegen.kernels.writing import KernelGrid, KernelSource
from ptqc.codegen.program.layout import Layout


def along(x: Layout, y: Layout, axis: int, weights: np.ndarray) -> KernelSource:
    """weights (size of y's axis, size of x's axis): most are zero, and only as many are read as any row has others."""
    taps = max(1, int((weights != 0).sum(1).max()))
    places = np.sort(np.argsort(weights == 0, axis=1, kind="stable")[:, :taps], axis=1)
    factors = np.take_along_axis(weights, places, axis=1)

    def body(grid: KernelGrid, buffer: Any, index: Any, factor: Any, out: Any) -> None:
        with grid.elements(y) as (sample, place):
            total = None
            for tap in range(taps):
                at = place[axis] * taps + tap
                source = [index[at] if i == axis else inner for i, inner in enumerate(place)]
                product = buffer[sample, x.offset(source)] * factor[at]
                total = product if total is None else total + product
            T.buffer_store(out, total, [sample, y.offset(place)])

    return build("resample", [x], [places.astype(np.int32), factors.astype(np.float32)], y, body)
