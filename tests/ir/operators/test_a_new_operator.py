"""An operator gets an integer kernel by what is said of it in one place: everything else follows.

ONNX Runtime has a softmax of codes, which ptqc does not plan: its output would need nearly all codes of one scale for
values that are mostly small. It has no HardSwish of codes, and ptqc gives it no table, since ONNX Runtime is faster in
float. Here both are planned all the same.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import compiled, proto, samples, weight

import ptqc
from ptqc.codegen.onnxruntime.verify import take
from ptqc.execution.onnxruntime import softmax_in_float64
from ptqc.ir import integer_arithmetic as integer
from ptqc.ir.nodes import integer as integer_attribute
from ptqc.ir.operators import OPERATORS, registry
from ptqc.ir.operators.base import LoweredStep, input_params, output_params

sys.path.append(str(Path(__file__).resolve().parents[3] / "examples" / "plugin"))

from ptqc_example.hard_swish import HARD_SWISH

pytestmark = pytest.mark.processor

NETWORK = """g (float[N,8] x) => (float[N,6] y) {
    h = Gemm(x, w1, b1)
    s = Softmax<axis=-1>(h)
    y = Gemm(s, w2, b2)
}"""


def softmax(step: LoweredStep, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """The codes that ONNX Runtime's kernel gives."""
    axis = integer_attribute(step.node, "axis", -1)
    in_float64 = softmax_in_float64()
    return integer.softmax(inputs[0], input_params(step), output_params(step), axis, in_float64=in_float64)


def test_it_is_planned_packed_and_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = replace(OPERATORS["Softmax"], kernels=frozenset(["QLinearSoftmax"]), reference=softmax)
    monkeypatch.setitem(registry.OPERATORS, "Softmax", said)  # type: ignore[arg-type]
    model = proto(NETWORK, w1=weight(8, 8), b1=weight(8, seed=1), w2=weight(8, 6), b2=weight(6, seed=2))
    artifact = compiled(model, samples(8, count=16), tmp_path, activations="integer", bits=(7,))
    assert take(onnx.load(artifact.path), {}).operators["QLinearSoftmax"] == 1
    assert "Softmax" not in artifact.manifest["float_operators"]


def test_one_without_a_kernel_of_onnx_runtime_gets_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.OPERATORS, "HardSwish", HARD_SWISH)  # type: ignore[arg-type]
    graph = "g (float[N,8] x) => (float[N,6] y) { h = Gemm(x, w1, b1) s = HardSwish(h) y = Gemm(s, w2, b2) }"
    model = proto(graph, w1=weight(8, 8), b1=weight(8, seed=1), w2=weight(8, 6), b2=weight(6, seed=2))
    artifact = compiled(model, samples(8, count=16), tmp_path, activations="integer", bits=(7,))
    assert take(onnx.load(artifact.path), {}).operators["GatherElements"] == 1
    assert artifact.manifest["float_operators"] == {}
    assert "3 integer kernels" in str(ptqc.verify(artifact.folder))
