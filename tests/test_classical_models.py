"""Models of classical learners, compiled as a whole, and those that are refused with what to do."""

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from compiling import compiled, samples, weight
from onnx import helper, numpy_helper

import ptqc
from ptqc.artifact.folder import GOLDEN
from ptqc.artifact.golden import Golden
from ptqc.errors import ModelError
from ptqc.execution.onnxruntime import Runner
from ptqc.frontend import read_model

FEATURES, CLASSES = 64, 10
NAMES = [f"digit {i}" for i in range(CLASSES)]


def learned(graph: str) -> onnx.ModelProto:
    """A model in ONNX's text form that may use `ai.onnx.ml`."""
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 3]> {graph}')


def named_digits() -> onnx.ModelProto:
    """A scaler and a linear classifier with labels in three ways: a string, another string, and one more looked up."""
    model = learned(
        f"""g (float[N, {FEATURES}] x) => (string[N] label, string[N] loud, string[N] short, float[N, M] scores) {{
            s = ai.onnx.ml.Scaler <offset = [0.5], scale = [2.0]> (x)
            label, scores = ai.onnx.ml.LinearClassifier <post_transform = "SOFTMAX"> (s)
            loud = ai.onnx.ml.LabelEncoder (label)
            p = ArgMax <axis = 1, keepdims = 0> (scores)
            short = Gather(letters, p)
        }}"""
    )
    attributes = {
        "coefficients": weight(CLASSES, FEATURES).ravel().tolist(),
        "intercepts": [0.1] * CLASSES,
        "classlabels_strings": NAMES,
    }
    model.graph.node[1].attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    renamed = {"keys_strings": NAMES, "values_strings": [name.upper() for name in NAMES]}
    model.graph.node[2].attribute.extend(helper.make_attribute(name, value) for name, value in renamed.items())
    model.graph.initializer.append(numpy_helper.from_array(np.array(list("abcdefghij"), object), "letters"))
    return model


def test_string_labels_come_through_a_compile_and_its_verification(tmp_path: Path) -> None:
    rows = samples(FEATURES, count=64)
    artifact = compiled(named_digits(), rows, tmp_path, "75%")
    kept = Golden.read(artifact.folder / GOLDEN).outputs[0]
    assert {name: kept[name].dtype.kind for name in kept} == {"label": "U", "loud": "U", "short": "U", "scores": "f"}
    assert "2 golden samples" in ptqc.verify(artifact.folder).checks["golden"]
    real, packed = Runner(tmp_path / "model.onnx").run({"x": rows}), Runner(artifact.path).run({"x": rows})
    assert np.mean(real["label"] == packed["label"]) > 0.9
    assert packed["loud"].tolist() == [name.upper() for name in packed["label"].tolist()]
    assert packed["short"].tolist() == ["abcdefghij"[int(name[-1])] for name in packed["label"].tolist()]


def one_node(op_type: str, outputs: str, **attributes: object) -> onnx.ModelProto:
    model = learned(f"g (float[N, 4] x) => ({outputs}) {{ y = ai.onnx.ml.{op_type}(x) }}")
    model.graph.node[0].attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    return model


@pytest.mark.parametrize(
    ("model", "reason", "remedy"),
    [
        (one_node("TreeEnsembleRegressor", "float[N, 1] y", n_targets=1), "nothing to quantize in dec", "train fewer"),
        (
            one_node("SVMRegressor", "float[N, 1] y", kernel_type="RBF", support_vectors=[1.0] * 4, n_supports=1),
            "a kernel of the kind RBF",
            "train with kernel='linear'",
        ),
        (one_node("ZipMap", "float[N, 1] y", classlabels_int64s=[0, 1]), "one map per sample", "{'zipmap': False}"),
    ],
)
def test_what_has_nothing_to_quantize_is_refused(
    tmp_path: Path, model: onnx.ModelProto, reason: str, remedy: str
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    with pytest.raises(ModelError, match=reason) as info:
        read_model(path)
    assert remedy in str(info.value)
    assert "custom" not in str(info.value)


def test_a_model_without_operators_of_the_main_domain_needs_no_version_of_it(tmp_path: Path) -> None:
    model = one_node("Binarizer", "float[N, 4] y", threshold=0.5)
    del model.opset_import[0]
    onnx.save(model, tmp_path / "m.onnx")
    assert read_model(tmp_path / "m.onnx").model.opset_imports == {"ai.onnx.ml": 3, "": 18}
