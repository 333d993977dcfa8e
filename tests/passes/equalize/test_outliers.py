from itertools import product

import pytest
from graphs import noise, parse
from rewriting import operators

from ptqc.passes.equalize.outliers import Remedy, from_json, rewrites, to_json
from ptqc.passes.runner import run_rewrites

CHANNELS = 6


def test_they_are_read_back() -> None:
    several = tuple(Remedy(*of) for of in product(("a", "b"), ((), (1, 5)), (False, True)))
    assert from_json(to_json(several)) == several


def test_splits_are_written_as_they_were_without_rows() -> None:
    assert to_json([Remedy("a", (1, 5))]) == [["a", [1, 5]]]


@pytest.mark.parametrize(
    ("remedy", "expected"),
    [
        (Remedy("x", (2,)), ["Mul", "Gather", "MatMul", "MatMul", "Add"]),
        (Remedy("x", by_row=True), ["Abs", "ReduceMax", "Max", "Div", "MatMul", "Mul"]),
        (
            Remedy("x", (2,), by_row=True),
            ["Mul", "Gather", "Abs", "ReduceMax", "Max", "Div", "MatMul", "Mul", "MatMul", "Add"],
        ),
    ],
)
def test_what_layers_read_then(remedy: Remedy, expected: list[str]) -> None:
    graph = f"g (float[N, 5, {CHANNELS}] x) => (float[N, 5, 4] y) {{ y = MatMul(x, w) }}"
    model = parse(graph, w=noise(CHANNELS, 4))
    x = noise(2, 5, CHANNELS, seed=1)
    x[:, 3] *= 100
    x[:, :, 2] *= 100
    run_rewrites(model, rewrites([remedy]), [{"x": x}])
    assert operators(model) == expected
    read = {str(node.inputs[0].name) for node in model.graph if node.op_type == "MatMul"}  # type: ignore[union-attr]
    assert remedy.rest in read
