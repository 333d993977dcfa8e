"""The reference computes exactly what ONNX Runtime's kernels give for a lowered graph."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from compiling import Measured, measure_residual, measured_model, proto, samples, weight
from mostly_slow import mostly_slow

from ptqc.codegen.onnxruntime.unpack import unpack
from ptqc.execution.onnxruntime import Runner
from ptqc.ir import reference
from ptqc.ir.lowered import Lowered
from ptqc.ir.operators.base import has_float_output
from ptqc.passes.allocate.state import QuantizedModel

pytestmark = pytest.mark.processor


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    return measure_residual(tmp_path_factory.mktemp("residual"), bits=(3, 7))


@pytest.fixture(scope="module")
def fitted(measured: Measured) -> QuantizedModel:
    return measured.fit()


def codes(lowered: Lowered, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Codes of all kernels as ONNX Runtime's kernels give them."""
    names = sorted({name for step in reference.steps(lowered) for name in (*step.inputs, step.output)})
    return Runner(lowered.model, names).run(feeds, names)


def test_steps_are_the_kernels_on_codes(fitted: QuantizedModel) -> None:
    """The last layer has a float output."""
    steps = list(reference.steps(fitted.lowered))
    assert [step.name for step in steps] == ["Conv ar", "Conv br", "Conv c", "Add cr", "GlobalAveragePool p", "Gemm y"]
    assert steps[3].inputs == ("c/codes", "br/codes")
    assert [has_float_output(step) for step in steps] == [False] * 5 + [True]


def test_every_kernel_gives_the_references_integers(measured: Measured, fitted: QuantizedModel) -> None:
    for feeds in measured.feeds:
        values = codes(fitted.lowered, feeds)
        for step in reference.steps(fitted.lowered):
            low, high = reference.bounds(step, values)
            assert low.dtype == (np.float32 if has_float_output(step) else np.uint8)
            assert low is high
            assert np.array_equal(low, values[step.output]), step.name
            assert len(np.unique(low)) >= 10


def test_a_changed_weight_code_changes_the_references_integers(measured: Measured, fitted: QuantizedModel) -> None:
    lowered = replace(fitted.lowered, model=fitted.lowered.model.clone())
    value = lowered.model.graph.initializers["w1/codes"]
    assert value.const_value is not None
    value.const_value = ir.tensor(-value.const_value.numpy(), name="w1/codes")
    values = codes(fitted.lowered, measured.feeds[0])
    first = next(iter(reference.steps(lowered)))
    assert not np.array_equal(reference.bounds(first, values)[0], values[first.output])


GRAPHS = {
    "strided, dilated, grouped convolution": (
        "g (float[N,8,9,9] x) => (float[N,16,4,4] y) { a = Conv<group=4, strides=[2,1], dilations=[1,2], "
        "pads=[0,1,1,0], kernel_shape=[3,3]>(x, w, b) r = Relu(a) y = Conv<strides=[1,2]>(r, v) }",
        {"w": weight(16, 2, 3, 3), "b": weight(16), "v": weight(16, 16, 1, 1)},
        (8, 9, 9),
        {"Conv"},
    ),
    "products of rank 3": (
        "g (float[N,5,32] x) => (float[N,5,16] y) { a = MatMul(x, w) b = MatMul(a, v) y = MatMul(b, u) }",
        {"w": weight(32, 48), "v": weight(48, 48), "u": weight(48, 16)},
        (5, 32),
        {"MatMul"},
    ),
    "gated product": (
        "g (float[N,32] x) => (float[N,16] y) { a = Gemm(x, w, b) s = Sigmoid(a) m = Mul(a, s) y = Gemm(m, v) }",
        {"w": weight(32, 48), "b": weight(48), "v": weight(48, 16)},
        (32,),
        {"Gemm", "Sigmoid", "Mul"},
    ),
    "pool and activation": (
        "g (float[N,8,9,9] x) => (float[N,4,4,4] y) { a = Conv(x, w, b) l = LeakyRelu<alpha=0.2>(a) "
        "p = AveragePool<kernel_shape=[3,3], strides=[2,2], pads=[1,0,0,1]>(l) y = Conv(p, v) }",
        {"w": weight(16, 8, 1, 1), "b": weight(16), "v": weight(4, 16, 1, 1)},
        (8, 9, 9),
        {"Conv", "LeakyRelu", "AveragePool"},
    ),
}


@pytest.mark.parametrize("name", mostly_slow(GRAPHS, "strided, dilated, grouped convolution", "gated product"))
def test_other_kernels_give_the_references_integers(name: str, tmp_path: Path) -> None:
    graph, weights, shape, operators = GRAPHS[name]
    measured = measured_model(proto(graph, **weights), samples(*shape), tmp_path, bits=(5,), activations="integer")
    lowered = measured.fit().lowered
    steps = list(reference.steps(lowered))
    values = codes(lowered, measured.feeds[0])
    assert {step.node.op_type for step in steps} == operators
    for step in steps:
        low, high = reference.bounds(step, values)
        assert ((low <= values[step.output]) & (values[step.output] <= high)).all(), step.name


def test_a_delivered_file_has_the_same_kernels(tmp_path: Path) -> None:
    """A layer that reads codes but computes in float has none, in the lowered graph and in the file."""
    graph = (
        "g (float[N,32] x) => (float[N,16] y, float[N,16] z) { a = Gemm(x, w, b) s = Sigmoid(a) y = MatMul(s, v) "
        "h = Gemm(s, u, c) r = Relu(h) z = Sin(r) }"
    )
    weights = {"w": weight(32, 48), "b": weight(48), "v": weight(48, 16), "u": weight(48, 16, seed=1), "c": weight(16)}
    measured = measured_model(proto(graph, **weights), samples(32), tmp_path, bits=(5,), activations="integer")
    plan = measured.fit().plan
    activations = {name: params for name, params in plan.activations.items() if name != "r"}
    fitted = measured.fit(plan=replace(plan, activations=activations))
    names = [
        [step.node.op_type for step in reference.steps(x)] for x in (fitted.lowered, unpack(fitted.exported.proto))
    ]
    assert names == [["Gemm", "Sigmoid", "MatMul"]] * 2


def test_float_layers_are_no_steps(tmp_path: Path) -> None:
    lowered = measure_residual(tmp_path, bits=(4,), activations="float").fit().lowered
    assert list(reference.steps(lowered)) == []
