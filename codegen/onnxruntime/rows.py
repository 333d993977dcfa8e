"""Rows of tables that stay packed in memory: a Gather of what is stored, unpacked in each run.

A Gather of rows of a weight that only such nodes read becomes a call with the bytes of the table and the places.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ptqc.ir.lowered import Lowered
from ptqc.ir.nodes import initial, producer, rank, required
from ptqc.ir.picked_rows import pickers, stays_packed
from ptqc.ir.quantized_weight import Solution


@dataclass(frozen=True)
class Pick:
    """A node that picks rows of a table. rows, places, table: names of its output and inputs; solution: of the table.

    codes: name of the initializer with the table's. rank, dtype: of the places.
    """

    rows: str
    places: str
    table: str
    codes: str
    solution: Solution
    rank: int
    dtype: np.dtype[Any]


def picks(lowered: Lowered) -> Iterator[Pick]:
    """All of a lowered graph whose tables stay packed."""
    for value in (value for node in lowered.model.graph for value in node.outputs if value.name in lowered.weights):
        maker = producer(value, "DequantizeLinear")
        if maker is None or not pickers(value):
            continue
        codes, scale = (str(source.name) for source in maker.inputs[:2] if source is not None)
        form = lowered.formats.get(codes)  # none where the table is stored as it is, in FP8 for example
        if form is None:
            continue
        solution = Solution(form, initial(lowered.model, codes), initial(lowered.model, scale), 0)
        if not stays_packed(form, solution.codes.shape):
            continue
        for node in pickers(value):
            yield _pick(node, str(value.name), codes, solution)


def _pick(node: ir.Node, table: str, codes: str, solution: Solution) -> Pick:
    places = required(node.inputs[1])
    dtype = np.dtype(np.int64) if places.dtype is None else places.dtype.numpy()
    return Pick(str(node.outputs[0].name), str(places.name), table, codes, solution, rank(places) or 0, dtype)
