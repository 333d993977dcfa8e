"""Pools whose codes no integer convolution made run in float in the file, and give the same codes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import Measured, compiled, measured_model, proto, samples, weight

import ptqc
from ptqc.codegen.onnxruntime import float_pools
from ptqc.codegen.onnxruntime.export import Exported, export
from ptqc.codegen.onnxruntime.verify import Verified, verify
from ptqc.codegen.onnxruntime.verify_semantics import Intent
from ptqc.errors import VerificationError
from ptqc.execution.onnxruntime import Runner
from ptqc.ir.lowered import Lowered
from ptqc.passes.allocate.state import QuantizedModel

# Pools behind a float operator, one after the other; one behind a convolution; and one of an input.
NETWORK = """g (float[N,8,9,9] x) => (float[N,4] y) {
    s = Sin(x)
    m = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (s)
    k = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (m)
    i = MaxPool <kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1> (x)
    j = Concat <axis = 1> (m, k)
    c = Conv(j, w1, b1)
    e = Conv(i, w2, b2)
    a = Add(c, e)
    q = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a)
    d = Conv(q, w3, b3)
    p = GlobalAveragePool(d)
    h = Flatten(p)
    y = Gemm(h, w4, b4)
}"""
SHAPES = {"w1": (8, 16, 1, 1), "w2": (8, 8, 1, 1), "w3": (8, 8, 1, 1), "w4": (8, 4)}


def network() -> onnx.ModelProto:
    weights = {name: weight(*shape, seed=i) for i, (name, shape) in enumerate(SHAPES.items())}
    return proto(NETWORK, **weights, **{f"b{i}": weight(n, seed=i) for i, n in ((1, 8), (2, 8), (3, 8), (4, 4))})


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    folder = tmp_path_factory.mktemp("pools")
    return measured_model(network(), samples(8, 9, 9, count=24), folder, activations="integer", bits=(4, 7))


@pytest.fixture(scope="module")
def fitted(measured: Measured) -> QuantizedModel:
    return measured.fit()


def checked(measured: Measured, fitted: QuantizedModel, exported: Exported) -> Verified:
    return verify(exported, fitted.lowered, Intent(measured.model, fitted.plan, fitted.tuned), measured.feeds, None)


def test_only_the_one_behind_integer_convolutions_is_on_codes(measured: Measured, fitted: QuantizedModel) -> None:
    assert {"s", "m", "k", "i", "x"} <= fitted.plan.params.keys()
    result = checked(measured, fitted, fitted.exported)
    assert (result.operators["NhwcMaxPool"], result.operators["MaxPool"]) == (1, 3)
    assert result.operators["Max"] == 3


def test_codes_that_nothing_reads_are_not_made(fitted: QuantizedModel) -> None:
    graph = fitted.exported.proto.graph
    made = {name for node in graph.node if node.op_type == "QuantizeLinear" for name in node.output}
    read = {name for node in graph.node for name in node.input}
    assert made <= read
    assert fitted.lowered.codes["s"] not in fitted.exported.renamed


def test_the_same_integers(measured: Measured, fitted: QuantizedModel) -> None:
    plain = export(fitted.lowered, measured.model, is_fast=False)
    assert {node.op_type for node in plain.proto.graph.node} & {"Max"} == set()
    for feeds in measured.feeds:
        slow, fast = (Runner(file.proto, names).run(feeds, names) for file, names in codes_of(fitted, plain))
        for one, other in zip(slow.values(), fast.values(), strict=True):
            assert one.dtype == np.uint8
            np.testing.assert_array_equal(one, other)


def codes_of(fitted: QuantizedModel, plain: Exported) -> list[tuple[Exported, list[str]]]:
    """Both files, each with the names of the codes of the same tensors."""
    tensors = ("m", "k", "i", "a", "q", "d")
    return [(file, [file.renamed[fitted.lowered.codes[t]] for t in tensors]) for file in (plain, fitted.exported)]


def test_a_wrong_pool_is_found(measured: Measured, fitted: QuantizedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    right = float_pools._known_codes

    def wrong(lowered: Lowered) -> float_pools._KnownCodes:
        result, name = right(lowered), fitted.lowered.codes["i"]
        result.pools[name] = replace(result.pools[name], real="s")
        return result

    monkeypatch.setattr(float_pools, "_known_codes", wrong)
    with pytest.raises(VerificationError, match=r"MaxPool i: .* differ from what the plan asks"):
        checked(measured, fitted, export(fitted.lowered, measured.model))


def test_a_delivered_file_and_batches_of_any_size(tmp_path: Path) -> None:
    artifact = compiled(network(), samples(8, 9, 9, count=24), tmp_path, activations="integer", bits=(4, 7))
    assert "integer kernels give what the reference gives" in str(ptqc.verify(artifact.folder))
    runner = Runner(onnx.load(artifact.path))
    for rows in (0, 1, 5):
        assert runner.run({"x": samples(8, 9, 9, count=rows)})["y"].shape == (rows, 4)


# Two pools of what a Clip leaves of codes, one of joined codes, and one of a sum of codes.
BEHIND_CODES = """g (float[N,8,9,9] x) => (float[N,4] y) {
    s = Sin(x)
    u = Clip(s, low, high)
    m = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (u)
    k = MaxPool <kernel_shape = [5, 5], pads = [2, 2, 2, 2]> (u)
    j = Concat <axis = 1> (u, m, k)
    o = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (j)
    c = Conv(o, w1, b1)
    n = Cos(x)
    a = Add(s, n)
    q = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a)
    e = Conv(q, w2, b2)
    z = Add(c, e)
    p = GlobalAveragePool(z)
    h = Flatten(p)
    y = Gemm(h, w4, b4)
}"""


def behind_codes() -> onnx.ModelProto:
    shapes = {"w1": (8, 24, 1, 1), "w2": (8, 8, 1, 1), "w4": (8, 4)}
    weights = {name: weight(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    biases = {f"b{i}": weight(n, seed=i) for i, n in ((1, 8), (2, 8), (4, 4))}
    return proto(BEHIND_CODES, low=np.float32(-0.5), high=np.float32(0.7), **weights, **biases)


@pytest.mark.slow
def test_pools_of_codes_that_other_operators_give(tmp_path: Path) -> None:
    measured = measured_model(behind_codes(), samples(8, 9, 9, count=24), tmp_path, activations="integer", bits=(4, 7))
    fitted = measured.fit()
    pools = {"m", "k", "o", "q"}
    assert {"s", "u", "n", "a", *pools} <= fitted.plan.params.keys()
    result = checked(measured, fitted, fitted.exported)
    assert (result.operators["MaxPool"], result.operators["Max"]) == (4, 4 + 3)
    assert "Clip" in result.operators
    plain = export(fitted.lowered, measured.model, is_fast=False)
    for feeds in measured.feeds:
        several = []
        for file in (plain, fitted.exported):
            names = [file.renamed[fitted.lowered.codes[name]] for name in sorted(pools)]
            several.append(Runner(file.proto, names).run(feeds, names))
        for one, other in zip(*(each.values() for each in several), strict=True):
            assert one.dtype == np.uint8
            np.testing.assert_array_equal(one, other)


# ONNX Runtime has a Softmax on codes, which rounds otherwise than a Softmax in float and a rounding behind it.
BEHIND_SOFTMAX = """g (float[N,8,9,9] x) => (float[N,8,9,9] y) {
    c = Conv(x, w1, b1)
    s = Softmax <axis = 1> (c)
    m = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (s)
    y = Conv(m, w2, b2)
}"""


def test_a_pool_of_codes_that_a_softmax_gives(tmp_path: Path) -> None:
    weights = {f"w{i}": weight(8, 8, 1, 1, seed=i) for i in (1, 2)} | {f"b{i}": weight(8, seed=i) for i in (1, 2)}
    model = proto(BEHIND_SOFTMAX, **weights)
    measured = measured_model(model, samples(8, 9, 9, count=24), tmp_path, activations="integer", bits=(4, 7))
    fitted = measured.fit()
    codes, pooled = (fitted.lowered.codes[name] for name in ("s", "m"))
    assert checked(measured, fitted, fitted.exported).operators["QLinearSoftmax"] == 1
    names = [fitted.exported.renamed[name] for name in (codes, pooled)]
    plain = export(fitted.lowered, measured.model, is_fast=False)
    result = Runner(fitted.exported.proto, names).run(measured.feeds[0], names)[names[1]]
    wanted = Runner(plain.proto, [plain.renamed[pooled]]).run(measured.feeds[0])[plain.renamed[pooled]]
    np.testing.assert_array_equal(result, wanted)


# Pools whose Indices are a result, and that a rounding follows: at once, and behind a Reshape.
WITH_INDICES = """g (float[N,3,8,8] x) => (float[N,8,4,4] y, int64[N,3,4,4] i, int64[N,3,4,4] j) {
    p, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
    s = Sin(x)
    q, j = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (s)
    r = Reshape(q, shape)
    a = Conv <pads = [1, 1, 1, 1]> (p, w1)
    b = Conv <pads = [1, 1, 1, 1]> (r, w2)
    y = Add(a, b)
}"""


def with_indices() -> onnx.ModelProto:
    weights = {f"w{seed}": weight(8, 3, 3, 3, seed=seed) for seed in (1, 2)}
    return proto(WITH_INDICES, shape=np.array([-1, 3, 4, 4]), **weights)


@pytest.mark.slow
def test_indices_are_those_of_the_float_model(tmp_path: Path) -> None:
    data = samples(3, 8, 8, count=64)
    artifact = compiled(with_indices(), data, tmp_path, activations="integer", bits=(4, 7))
    file = onnx.load(artifact.path)
    assert "QuantizeLinear" in {node.op_type for node in file.graph.node}
    asked, value = (Runner(model).run({"x": data}) for model in (with_indices(), file))
    np.testing.assert_array_equal(value["i"], asked["i"])
    np.testing.assert_array_equal(value["j"], asked["j"])


@pytest.mark.slow
def test_indices_of_a_file_without_codes_need_nothing(tmp_path: Path) -> None:
    artifact = compiled(with_indices(), samples(3, 8, 8, count=24), tmp_path, activations="float", bits=(4, 7))
    assert "Max" not in {node.op_type for node in onnx.load(artifact.path).graph.node}
