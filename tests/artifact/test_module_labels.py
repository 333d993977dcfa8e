"""Layers have the names of their modules where exporters tell these in weights alone."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from compiling import compiled, proto, samples, weight

import ptqc
from ptqc.artifact.folder import REPORT
from ptqc.artifact.report.explanation import Explanation
from ptqc.errors import Infeasible
from ptqc.frontend import read_model
from ptqc.ir.layers import find_layers, find_weights, module_labels
from ptqc.tools import benching
from ptqc.tools.benching import FileBench

# As PyTorch's exporter writes a network with batch normalization.
NUMBERED = """g (float[N,8] x) => (float[N,4] linear_1) {
    getitem_57 = MatMul(x, w1)
    r = Relu(getitem_57)
    linear_1 = MatMul(r, w2)
}"""


WITH_IMAGES = """g (float[N,3,8,8] x) => (float[N,4] linear_1) {
    getitem_57 = Conv<pads=[1,1,1,1]>(x, w1)  relu_7 = Relu(getitem_57)
    p = GlobalAveragePool(relu_7)  f = Flatten(p)
    linear_1 = Gemm<transB=1>(f, w2)
}"""


def numbered(first: str = "blocks.5.c1.weight", last: str = "head.weight") -> onnx.ModelProto:
    return named(proto(NUMBERED, w1=weight(8, 8), w2=weight(8, 4, seed=1)), first, last)


def named(model: onnx.ModelProto, first: str, last: str) -> onnx.ModelProto:
    for old, new in (("w1", first), ("w2", last)):
        for node in model.graph.node:
            node.input[:] = [new if each == old else each for each in node.input]
        for tensor in model.graph.initializer:
            tensor.name = new if tensor.name == old else tensor.name
    return model


def labels(model: onnx.ModelProto) -> dict[str, str]:
    result = ir.from_proto(model)
    return dict(module_labels(find_weights(result, find_layers(result))))


def test_the_weight_tells_the_module() -> None:
    assert labels(numbered()) == {"getitem_57": "blocks.5.c1", "linear_1": "head"}
    assert labels(numbered("tower/dense/kernel:0"))["getitem_57"] == "tower/dense"


@pytest.mark.parametrize(
    ("first", "name"), [("w", "getitem_57"), ("onnx::Conv_77", "getitem_57"), ("a.weight", "x/Conv_output_0")]
)
def test_names_that_tell_enough_or_nothing_stay(first: str, name: str) -> None:
    model = numbered(first)
    for node in model.graph.node:
        node.output[:] = [name if each == "getitem_57" else each for each in node.output]
        node.input[:] = [name if each == "getitem_57" else each for each in node.input]
    assert labels(model) == {"linear_1": "head"}


def test_two_layers_of_one_module_keep_their_names() -> None:
    assert labels(numbered("head.weight", "head.kernel")) == {}


def test_report_and_explanation_name_modules(tmp_path: Path) -> None:
    """The plan has the model's names, by which its file is looked up."""
    result = compiled(numbered(), samples(8), tmp_path, activations="float")
    record = str(Explanation(result.manifest, result.plan, result.sensitivity))
    report = (result.folder / REPORT).read_text()
    assert [("blocks.5.c1" in text, "getitem_57" in text) for text in (record, report)] == [(True, False)] * 2
    assert [list(entry["layers"]) for entry in result.plan["weights"]] == [["getitem_57"], ["linear_1"]]
    y = result.run({"x": np.zeros((1, 8), np.float32)})
    assert list(y) == ["linear_1"]


def test_a_latency_that_cannot_be_met_names_modules(tmp_path: Path) -> None:
    with pytest.raises(Infeasible, match=r"Slowest: .*blocks\.5\.c1 \(MatMul") as refusal:
        compiled(numbered(), samples(8), tmp_path, "1ns")
    assert any(what.startswith("head (MatMul") for what, _ in refusal.value.blockers)
    assert "getitem_57 (" not in str(refusal.value)


@pytest.mark.slow
def test_a_layer_that_absorbs_an_activation_function_has_the_name_of_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benching, "SECONDS", 0.1)
    constants = {"w1": weight(32, 3, 3, 3), "w2": weight(4, 32, seed=1)}
    model, data = named(proto(WITH_IMAGES, **constants), "blocks.5.c1.weight", "head.weight"), samples(3, 8, 8)
    result = ptqc.bench(compiled(model, data, tmp_path, activations="integer").folder)
    assert isinstance(result, FileBench)
    kernels = {operator.name: operator.kernel for operator in result.operators}
    assert (kernels["blocks.5.c1"], kernels["head"]) == ("QLinearConv", "QGemm")
    assert kernels.keys().isdisjoint({"relu_7", "getitem_57", "linear_1"})
    with pytest.raises(Infeasible, match=r"Slowest: .*blocks\.5\.c1 \(Conv on integers\)") as refusal:
        compiled(model, data, tmp_path, "1ns", activations="integer", output=tmp_path / "fast")
    assert "relu_7" not in str(refusal.value)


def scoped(model: onnx.ModelProto, **scopes: object) -> onnx.ModelProto:
    """With the modules of outputs, as PyTorch's exporter of programs writes them."""
    for node in model.graph.node:
        if (scope := scopes.get(node.output[0])) is not None:
            node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(scope))
    return model


def read_labels(model: onnx.ModelProto, folder: Path) -> dict[str, str]:
    onnx.save(model, folder / "model.onnx")
    result = read_model(folder / "model.onnx").model
    return dict(module_labels(find_weights(result, find_layers(result))))


@pytest.mark.parametrize(
    ("scopes", "expected"),
    [
        ({"getitem_57": ["", "l.0", "l.0.qkv", "linear"]}, {"getitem_57": "l.0.qkv"}),
        (
            {"getitem_57": ["", "cell", "linear"], "linear_1": ["", "cell", "linear_1"]},
            {"getitem_57": "cell.getitem_57", "linear_1": "cell.linear_1"},
        ),
        ({"getitem_57": ["", "linear"], "linear_1": ["linear_1"]}, {}),
        ({"getitem_57": "no list", "linear_1": [1, 2]}, {}),
    ],
    ids=["one", "two in one", "of the network itself", "of another form"],
)
def test_the_exporter_tells_the_module_where_weights_do_not(
    scopes: dict[str, object], expected: dict[str, str], tmp_path: Path
) -> None:
    assert read_labels(scoped(numbered("val_40", "val_68"), **scopes), tmp_path) == expected


def test_a_table_has_its_name_behind_the_module(tmp_path: Path) -> None:
    """A recurrent matrix, which exporters number."""
    text = "g (float[5,N,16] x) => (float[5,1,N,16] y) { y = GRU<hidden_size=16>(x, val_3, val_4) }"
    model = proto(text, val_3=weight(1, 48, 16), val_4=weight(1, 48, 16, seed=1))
    assert read_labels(model, tmp_path) == {}
    labels = read_labels(scoped(model, y=["", "enc.gru", "gru"]), tmp_path)
    assert labels == {"val_3": "enc.gru.val_3", "val_4": "enc.gru.val_4"}


def test_names_of_weights_come_first(tmp_path: Path) -> None:
    model = scoped(numbered(last="val_68"), getitem_57=["", "a", "linear"], linear_1=["", "b", "linear_1"])
    assert read_labels(model, tmp_path) == {"getitem_57": "blocks.5.c1", "linear_1": "b"}


def test_modules_reach_the_manifest_and_not_the_file(tmp_path: Path) -> None:
    model, plain = (numbered("val_40", "val_68") for _ in range(2))
    scoped(model, getitem_57=["", "l.0.qkv", "linear"], linear_1=["", "head", "linear_1"])
    result = compiled(model, samples(8), tmp_path / "scoped", activations="float")
    assert result.manifest["labels"] == {"getitem_57": "l.0.qkv", "r": "l.0.qkv", "linear_1": "head"}
    assert "l.0.qkv" in str(Explanation(result.manifest, result.plan, result.sensitivity))
    bare = compiled(plain, samples(8), tmp_path / "plain", activations="float")
    assert result.path.read_bytes() == bare.path.read_bytes()
