"""Pools whose codes no integer convolution made run in float in the file, and give the same codes."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import Measured, compiled, measured_model, proto, samples, weight

import ptqc
from ptqc.codegen.onnxruntime import float_pools
from ptqc.codegen.onnxruntime.export import Exported, export
from ptqc.codegen.onnxruntime.intent import Intent
from ptqc.codegen.onnxruntime.verify import Verified, verify
from ptqc.errors import VerificationError
from ptqc.execute.onnxruntime import Runner
from ptqc.stages.fit import Fitted

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
def fitted(measured: Measured) -> Fitted:
    return measured.fit()


def checked(measured: Measured, fitted: Fitted, exported: Exported) -> Verified:
    return verify(exported, fitted.lowered, Intent(measured.model, fitted.plan, fitted.tuned), measured.feeds, None)


def test_only_the_one_behind_integer_convolutions_is_on_codes(measured: Measured, fitted: Fitted) -> None:
    assert {"s", "m", "k", "i", "x"} <= fitted.plan.params.keys()
    found = checked(measured, fitted, fitted.exported)
    assert (found.operators["NhwcMaxPool"], found.operators["MaxPool"]) == (1, 3)
    assert found.operators["Max"] == 3


def test_codes_that_nothing_reads_are_not_made(fitted: Fitted) -> None:
    graph = fitted.exported.proto.graph
    made = {name for node in graph.node if node.op_type == "QuantizeLinear" for name in node.output}
    read = {name for node in graph.node for name in node.input}
    assert made <= read
    assert fitted.lowered.codes["s"] not in fitted.exported.renamed


def test_the_same_integers(measured: Measured, fitted: Fitted) -> None:
    plain = export(fitted.lowered, measured.model, is_fast=False)
    assert {node.op_type for node in plain.proto.graph.node} & {"Max"} == set()
    for feeds in measured.feeds:
        slow, fast = (Runner(file.proto, names).run(feeds, names) for file, names in codes_of(fitted, plain))
        for one, other in zip(slow.values(), fast.values(), strict=True):
            assert one.dtype == np.uint8
            np.testing.assert_array_equal(one, other)


def codes_of(fitted: Fitted, plain: Exported) -> list[tuple[Exported, list[str]]]:
    """Both files, each with the names of the codes of the same tensors."""
    tensors = ("m", "k", "i", "a", "q", "d")
    return [(file, [file.renamed[fitted.lowered.codes[t]] for t in tensors]) for file in (plain, fitted.exported)]


def test_a_wrong_pool_is_found(measured: Measured, fitted: Fitted, monkeypatch: pytest.MonkeyPatch) -> None:
    right = float_pools._found

    def wrong(lowered: object) -> object:
        pools, codes = right(lowered)  # type: ignore[arg-type]
        name = fitted.lowered.codes["i"]
        return {**pools, name: float_pools._Rounded("s", pools[name].params)}, codes

    monkeypatch.setattr(float_pools, "_found", wrong)
    with pytest.raises(VerificationError, match=r"MaxPool i: .* differ from what the plan asks"):
        checked(measured, fitted, export(fitted.lowered, measured.model))


def test_a_delivered_file_and_batches_of_any_size(tmp_path: Path) -> None:
    artifact = compiled(network(), samples(8, 9, 9, count=24), tmp_path, activations="integer", bits=(4, 7))
    assert "integer kernels give what the reference gives" in str(ptqc.verify(artifact.folder))
    runner = Runner(onnx.load(artifact.path))
    for rows in (0, 1, 5):
        assert runner.run({"x": samples(8, 9, 9, count=rows)})["y"].shape == (rows, 4)
