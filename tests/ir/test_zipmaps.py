"""Classifiers whose scores are maps come through a compile: inside they are tensors, outside nothing changes."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from compiling import compiled, measured_model, proto, quick, samples, weight
from onnx import AttributeProto, TensorProto, helper

import ptqc
from ptqc.artifact.folder import GOLDEN, Artifact
from ptqc.artifact.golden import Golden
from ptqc.codegen.onnxruntime.verify import verify
from ptqc.codegen.onnxruntime.verify_semantics import Intent
from ptqc.errors import ModelError, VerificationError
from ptqc.execution.onnxruntime import Runner, open_session, session_options
from ptqc.frontend import read_model
from ptqc.ir import zipmaps

FEATURES = 64
# Neither is sorted, as scikit-learn's are, so that order matters.
NUMBERS = [30, -1, 7, 2, 100, 5, 8, 6, 0, 3]
WORDS = ["wren", "auk", "owl", "tern", "rook", "crow", "gull", "Möwe", "kite", "emu"]
GRAPH = f"""g (float[N, {FEATURES}] x) => (int64[N] best, float[N, 10] y) {{
    h = Gemm<transB=1>(x, w)
    r = Relu(h)
    k = Gemm<transB=1>(r, v)
    s = Softmax<axis=1>(k)
    best = ArgMax<axis=1, keepdims=0>(s)
    y = Identity(s)
}}"""


def map_output(name: str, key: int) -> onnx.ValueInfoProto:
    one = helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    return helper.make_value_info(name, helper.make_sequence_type_proto(one))


def zip_map(scores: str, output: str, labels: Sequence[object]) -> onnx.NodeProto:
    kind = "classlabels_strings" if isinstance(labels[0], str) else "classlabels_int64s"
    node = helper.make_node("ZipMap", [scores], [output], domain="ai.onnx.ml")
    node.attribute.append(helper.make_attribute(kind, labels))
    return node


def key_of(labels: Sequence[object]) -> int:
    return TensorProto.STRING if isinstance(labels[0], str) else TensorProto.INT64


def classifier(labels: Sequence[object], output: str = "y") -> onnx.ModelProto:
    """The best class, and scores as maps with these labels."""
    model = proto(GRAPH, w=weight(FEATURES, FEATURES), v=weight(10, FEATURES, seed=1))
    model.graph.node[-1].CopyFrom(zip_map("s", output, labels))
    model.graph.output[1].CopyFrom(map_output(output, key_of(labels)))
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return model


def plain_run(model: onnx.ModelProto | Path, x: np.ndarray) -> dict[str, Any]:
    """What ONNX Runtime gives, without anything of ptqc in between."""
    values = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = open_session(values, session_options())
    return dict(zip([value.name for value in session.get_outputs()], session.run(None, {"x": x}), strict=True))


def assert_close(wanted: list[dict[object, float]], result: list[dict[object, float]], tolerance: float) -> None:
    assert [list(row) for row in result] == [list(row) for row in wanted]
    pairs = [(one[label], other[label]) for one, other in zip(wanted, result, strict=True) for label in one]
    assert max(abs(a - b) for a, b in pairs) < tolerance


@pytest.fixture(scope="module")
def birds(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return compiled(classifier(WORDS), samples(FEATURES), tmp_path_factory.mktemp("birds"), "60%")


def test_a_classifier_compiles_as_it_is(birds: Artifact) -> None:
    model, delivered, x = classifier(WORDS), onnx.load(birds.path), samples(FEATURES, count=64)
    assert list(delivered.graph.output) == list(model.graph.output)
    assert delivered.graph.node[-1].attribute == model.graph.node[-1].attribute
    wanted, result = plain_run(model, x), birds.run({"x": x})
    assert np.mean(wanted["best"] == result["best"]) > 0.9
    assert_close(wanted["y"], result["y"], 0.1)
    assert result["y"] == birds.session().run(["y"], {"x": x})[0]
    assert [max(row, key=lambda label: row[label]) for row in result["y"]] == [WORDS[i] for i in result["best"]]
    (judged,) = birds.manifest["results"]["outputs"]
    assert (judged["name"], judged["kind"]) == ("y", "probabilities")
    assert Golden.read(birds.folder / GOLDEN).outputs[0]["y"].shape == (1, 10)
    messages = [note["message"] for note in birds.manifest["notes"] if note["subject"] == "y"]
    assert "the ZipMap that makes this output stays as it is" in messages
    checks = ptqc.verify(birds.folder, model=birds.folder.with_name("model.onnx")).checks
    assert "2 golden samples" in checks["golden"]
    assert "is the one that was compiled" in checks["model"]


def test_another_budget_needs_no_model(birds: Artifact, tmp_path: Path) -> None:
    with quick():
        smaller = ptqc.resolve(
            birds.folder, budget="25%", output=tmp_path / "out", cache=birds.folder.with_name("cache")
        )
    assert smaller.path.stat().st_size < birds.path.stat().st_size
    assert list(onnx.load(smaller.path).graph.output) == list(classifier(WORDS).graph.output)
    assert list(smaller.run({"x": samples(FEATURES, count=1)})["y"][0]) == sorted(WORDS)


@pytest.mark.slow
def test_scores_may_be_outputs_and_in_several_maps(tmp_path: Path) -> None:
    """One of the maps is called as the exporter would call a value of its own."""
    model, x = classifier(NUMBERS, output="a"), samples(FEATURES)
    model.graph.node.append(zip_map("s", "b", WORDS))
    model.graph.output.append(map_output("b", TensorProto.STRING))
    model.graph.output.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, ["N", 10]))
    artifact = compiled(model, x, tmp_path, "60%")
    wanted, result = plain_run(model, x), plain_run(artifact.path, x)
    assert list(result) == ["best", "a", "b", "s"]
    assert_close(wanted["a"], result["a"], 0.1)
    assert result["a"] == [dict(sorted(zip(NUMBERS, row.tolist(), strict=True))) for row in result["s"]]
    assert result["b"] == [dict(sorted(zip(WORDS, row.tolist(), strict=True))) for row in result["s"]]
    assert "2 golden samples" in ptqc.verify(artifact.folder, model=tmp_path / "model.onnx").checks["golden"]


@pytest.mark.slow
def test_other_labels_in_the_file_are_found(tmp_path: Path) -> None:
    measured = measured_model(classifier(NUMBERS), samples(FEATURES), tmp_path)
    fitted = measured.fit()
    intent = Intent(measured.model, fitted.plan, fitted.tuned)
    verify(fitted.exported, fitted.lowered, intent, measured.feeds, None)
    planted = onnx.ModelProto.FromString(fitted.exported.data)
    planted.graph.node[-1].CopyFrom(zip_map(planted.graph.node[-1].input[0], "y", NUMBERS[::-1]))
    with pytest.raises(VerificationError, match="the class labels in the file's maps"):
        verify(replace(fitted.exported, proto=planted), fitted.lowered, intent, measured.feeds, None)


def test_a_native_library_gives_the_same_maps(birds: Artifact, tmp_path: Path) -> None:
    """The library itself gives tensors; here ONNX Runtime stands in for it."""
    shutil.copytree(birds.folder, tmp_path / "out")
    (tmp_path / "out" / "cpu").mkdir()
    artifact, x = Artifact(tmp_path / "out"), samples(FEATURES, count=3)
    vars(artifact)["_library"] = Runner(onnx.load(birds.path))
    wanted, result = birds.run({"x": x}), artifact.run({"x": x})
    assert_close(wanted["y"], result["y"], 1e-6)
    assert np.array_equal(result["best"], wanted["best"])


def inner() -> onnx.ModelProto:
    """Something else than the user of the model reads the maps."""
    model = classifier(NUMBERS)
    model.graph.node.append(helper.make_node("Identity", ["y"], ["z"]))
    model.graph.output.append(map_output("z", TensorProto.INT64))
    return model


def hidden() -> onnx.ModelProto:
    """The maps are no output at all."""
    model = inner()
    del model.graph.output[1]
    return model


@pytest.mark.parametrize("model", [inner(), hidden()])
def test_maps_elsewhere_are_refused(tmp_path: Path, model: onnx.ModelProto) -> None:
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"one map per sample .*\{'zipmap': False\}"):
        read_model(tmp_path / "m.onnx")


@pytest.mark.parametrize(("labels", "message"), [((), "has no class labels"), ((b"\xff",), "labels that are not text")])
def test_labels_that_are_none_are_refused(tmp_path: Path, labels: Sequence[bytes], message: str) -> None:
    model = classifier(WORDS)
    del model.graph.node[-1].attribute[0].strings[:]
    model.graph.node[-1].attribute[0].strings.extend(labels)
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=message):
        read_model(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    "attribute",
    [
        AttributeProto(name="classlabels_int64s", type=AttributeProto.INT, i=5),
        AttributeProto(name="classlabels_strings", type=AttributeProto.STRING, s=b"abc"),
        AttributeProto(name="classlabels_int64s", type=AttributeProto.INTS, ref_attr_name="labels"),
        AttributeProto(name="classlabels_int64s"),
    ],
)
def test_labels_of_another_type_are_none(tmp_path: Path, attribute: AttributeProto) -> None:
    model = classifier(NUMBERS)
    model.graph.node[-1].attribute[0].CopyFrom(attribute)
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="has no class labels"):
        read_model(tmp_path / "m.onnx")


def test_maps_of_no_scores_are_refused(tmp_path: Path) -> None:
    model = classifier(NUMBERS)
    del model.graph.node[-1].input[:]
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="has no scores"):
        read_model(tmp_path / "m.onnx")


def test_sessions_give_tensors_in_the_order_of_the_labels(tmp_path: Path) -> None:
    model, x = classifier(WORDS), samples(FEATURES, count=2)
    onnx.save(model, tmp_path / "m.onnx")
    wanted = plain_run(model, x)["y"]
    for runner in (Runner(model), Runner(model, ["s"]), Runner(tmp_path / "m.onnx", ["s"])):
        result = runner.run({"x": x})
        assert result["y"].tolist() == [[row[label] for label in WORDS] for row in wanted]
    assert model == classifier(WORDS)


def test_the_tensor_of_a_vector_is_one(tmp_path: Path) -> None:
    model = proto("g (float[4] x) => (float[3] y) { s = MatMul(x, w) y = Identity(s) }", w=weight(4, 3))
    model.graph.node[-1].CopyFrom(zip_map("s", "y", ["a", "b", "c"]))
    model.graph.output[0].CopyFrom(map_output("y", TensorProto.STRING))
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    model.graph.value_info.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, [3]))
    onnx.save(model, tmp_path / "m.onnx")
    read = read_model(tmp_path / "m.onnx").model
    assert read.graph.outputs[0].shape == ir.Shape([3])
    assert zipmaps.remembered(read.clone()) == {"y": ["a", "b", "c"]}


def test_a_model_without_maps_is_left_alone() -> None:
    model = proto("g (float[4] x) => (float[3] y) { y = MatMul(x, w) }", w=weight(4, 3))
    assert zipmaps.as_tensors(model) is model
    assert zipmaps.remembered(ir.from_proto(model)) == {}
