"""Remarks: every operator that computes in float is named with its reason, and none that does not."""

from pathlib import Path

import numpy as np
import pytest
from compiling import Measured, measure_residual, measured_model, proto, samples, weight

from ptqc.artifact.unquantized import float_operators, unquantized_weights
from ptqc.notes import Level


def remarks(measured: Measured) -> dict[str, str]:
    return {result.name: result.note.message for result in float_operators(measured.model, measured.fit().plan)}


@pytest.mark.slow
def test_nothing_is_said_where_all_is_integer(tmp_path: Path) -> None:
    assert remarks(measure_residual(tmp_path, bits=(4,), activations="integer")) == {}


def test_everything_is_named_where_all_is_float(tmp_path: Path) -> None:
    measured = measure_residual(tmp_path, bits=(4,), activations="float")
    result = remarks(measured)
    assert result.keys() == {str(node.outputs[0].name) for node in measured.model.graph}
    assert all(" computes in float: " in message for message in result.values())


REASONS = {
    "Softmax": ("y = Softmax(a)", "ONNX Runtime has no integer kernel for it"),
    "Transpose": ("t = Softmax(a) y = Transpose<perm=[1,0]>(t)", "its input is not quantized"),
    "Add": ("s = Softmax(a) y = Add(s, b)", "one of its operands is constant"),
    "MatMul": ("t = Transpose<perm=[1,0]>(a) y = MatMul(a, t)", "its second operand is computed, not constant"),
}


@pytest.mark.parametrize("operator", REASONS)
def test_the_reason_fits_the_operator(tmp_path: Path, operator: str) -> None:
    rest, reason = REASONS[operator]
    graph = f"g (float[4,16] x) => (float[P,Q] y) {{ a = Gemm(x, w, b) {rest} }}"
    data = np.random.default_rng(0).standard_normal((16, 4, 16)).astype(np.float32)
    model = proto(graph, w=weight(16, 8), b=weight(8))
    measured = measured_model(model, data, tmp_path, bits=(4,), activations="integer")
    assert remarks(measured)["y"] == f"{operator} computes in float: {reason}"


def test_layers_that_would_lose_too_much_say_so(tmp_path: Path) -> None:
    measured = measured_model(
        proto("g (float[N,16] x) => (float[N,8] y) { y = Gemm(x, w) }", w=weight(16, 8)),
        samples(16),
        tmp_path,
        bits=(4,),
        activation_limit=1e-30,
    )
    assert (
        remarks(measured)["y"]
        == "Gemm computes in float: 8-bit activations would cost more accuracy than they are worth"
    )


def test_weights_kept_in_float_are_named(tmp_path: Path) -> None:
    """Without a limit a table is kept at 16 bits, exact as far as its values are."""
    table = np.random.default_rng(0).standard_normal((100, 32)).astype(np.float32)
    model = proto("g (int64[N,4] x) => (float[N,4,32] y) { y = Gather(w, x) }", w=table)
    measured = measured_model(model, np.arange(64).reshape(16, 4), tmp_path, bits=(4,))
    (note,) = unquantized_weights(measured.fit().plan)
    assert (note.subject, note.message, note.level) == ("w", "is stored as float16", Level.INFO)
    assert unquantized_weights(measured.fit(4_000).plan) == []
