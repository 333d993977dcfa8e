"""Which axes vary, and how sizes follow from lengths: asked of ONNX Runtime."""

import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse

from ptqc.codegen.program.batching import Seen
from ptqc.codegen.program.folding import fold
from ptqc.codegen.program.probing import fit, longest_first, open_axes
from ptqc.errors import NoKernel
from ptqc.execution.onnxruntime import Feeds
from ptqc.runtime.lengths import of_length, written

CACHED = """g (float[N, T, 4] x, float[N, A] mask, float[N, P, 4] past) => (float[N, T, A] y, float[N, A, 4] kept) {
    kept = Concat <axis = 1> (past, x) t = Transpose <perm = [0, 2, 1]> (kept) s = MatMul(x, t)
    m = Unsqueeze(mask, one) y = Add(s, m) }"""
BUFFER = """g (float[N, S, 4] x) => (float[N, S, 4] y) {
    n = Shape <start = 1, end = 2> (x) rows = Slice(table, zero, n, zero) y = Add(x, rows) }"""
TURNED = """g (float[N, S, 4] x) => (float[N, R, 8] y) { y = Reshape(x, pairs) }"""


def cached(time: int, past: int) -> Feeds:
    return {"x": noise(1, time, 4), "mask": noise(1, past + time), "past": noise(1, past, 4)}


def found(model: ir.Model, *samples: Feeds) -> Seen:
    return Seen.varied(model, samples, {})


def test_axes_that_vary_together_are_found() -> None:
    model = parse(CACHED, one=np.array([1]))
    seen = found(model, cached(5, 7), cached(5, 7))
    assert [(each.name, each.seen, each.least) for each in seen.lengths] == [("T", 5, 1), ("P", 7, 0)]
    assert [written(size) for size in seen.shapes["mask"]] == [1, "P + T"]
    assert [written(size) for size in seen.shapes["y"]] == [1, "T", "P + T"]
    assert [written(size) for size in seen.shapes["t"]] == [1, 4, "P + T"]
    others = seen.other_shapes(["mask"])
    assert others == {"T = 1, P = 0": {"mask": (1, 1)}, "T = 11, P = 15": {"mask": (1, 26)},
                      "T = 1, P = 15": {"mask": (1, 16)}}  # fmt: skip


def test_names_of_lengths_that_sizes_cannot_be_written_with() -> None:
    model = parse("g (float[N, T, 4] x, float[N, U, 4] z) => (float[N, T, 4] y) { y = Relu(x) }")
    for value, name in zip(model.graph.inputs, ("länge", "長"), strict=True):
        value.shape = ir.Shape(["N", name, 4])
    seen = found(model, {"x": noise(1, 5, 4), "z": noise(1, 7, 4)})
    assert [each.name for each in seen.lengths] == ["l_nge", "length"]
    assert Seen.from_json(seen.to_json()).shapes == seen.shapes


def test_one_step_stays_one_step() -> None:
    model = parse(CACHED, one=np.array([1]))
    assert [group.name for group in open_axes(model, [cached(1, 7), cached(1, 9)])] == ["A", "P"]
    first = longest_first(model, [cached(6, 0), cached(2, 5), cached(1, 9)])[0]
    assert first["past"].shape[1] == 5


def test_numbers_that_follow_from_lengths_are_told_from_what_is_constant() -> None:
    model = parse(BUFFER, table=noise(12, 4), zero=np.array([0]))
    seen = found(model, {"x": noise(1, 6, 4)})
    folded = fold(model, seen, None)
    assert [array.tolist() for array in folded.numbers["n"]] == [[point["S"]] for point in seen.points]
    assert "rows" not in folded.constants
    assert "table" in folded.constants


def test_sizes_that_are_no_sums_are_refused() -> None:
    with pytest.raises(NoKernel, match="no axis that the model leaves open can vary in it"):
        found(parse(TURNED, pairs=np.array([0, -1, 8])), {"x": noise(1, 6, 4)})


def test_fits_are_exact() -> None:
    points = ({"S": 9}, {"S": 8}, {"S": 7}, {"S": 6})
    assert fit(points, [19, 17, 15, 13]) == 2 * of_length("S") + 1
    assert fit(points, [4, 4, 4, 4]) == 4
    assert fit(points, [5, 4, 4, 3]) is None
