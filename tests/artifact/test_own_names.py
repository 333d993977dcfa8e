"""Wherever a person reads a layer's name of a compiled artifact, it is the one that the model gave it."""

import json
import shutil
from pathlib import Path

import onnx
import pytest
from compiling import residual

import ptqc
from ptqc.artifact.folder import MANIFEST, MODEL, Artifact
from ptqc.artifact.names import OwnNames
from ptqc.tools.benching import FileBench

# Of values that nodes of the model give; `ptqc inspect` and the plan call layers so, too.
OWN = {name for node in residual().graph.node for name in node.output}


@pytest.fixture(scope="module")
def artifact(small: Artifact) -> Artifact:
    return small


def test_values_of_layers_are_called_as_in_the_model(artifact: Artifact) -> None:
    """The oracle: the output of each convolution is wide, and the file has its shape by its own name."""
    names, file = artifact.manifest["names"], onnx.load(artifact.path)
    inferred = {v.name: v for v in onnx.shape_inference.infer_shapes(residual()).graph.value_info}
    convolutions = [node.output[0] for node in file.graph.node if node.op_type == "Conv"]
    assert len({names[output] for output in convolutions}) == len(convolutions)
    readable = onnx.shape_inference.infer_shapes(file)
    result = {value.name: value.type.tensor_type.shape for value in readable.graph.value_info}
    for output in convolutions:
        assert names[output] in OWN
        if output in result:
            assert result[output].dim[2:] == inferred[names[output]].type.tensor_type.shape.dim[2:]


def test_the_file_itself_keeps_its_short_names(artifact: Artifact) -> None:
    inner = set(artifact.manifest["names"])
    assert all(len(name) <= 2 for name in inner)
    assert inner.isdisjoint({"x", "y"})
    assert set(artifact.manifest["names"].values()) <= OWN | {"x"}


@pytest.mark.parametrize("value", ["folder", "path"])
def test_bench_tells_the_models_names(artifact: Artifact, value: str) -> None:
    result = ptqc.bench(getattr(artifact, value))
    assert isinstance(result, FileBench)
    assert {operator.name for operator in result.operators} <= OWN | {"x"}
    assert {entry["name"] for entry in result.to_json()["operators"]} <= OWN | {"x"}
    assert all(row.split()[0] in OWN | {"x"} for row in str(result).splitlines()[1 : 1 + len(result.operators)])


def test_a_file_elsewhere_or_changed_has_no_names(artifact: Artifact, tmp_path: Path) -> None:
    shutil.copy(artifact.path, tmp_path / MODEL)
    assert OwnNames.beside(tmp_path / MODEL) == OwnNames()
    (tmp_path / MANIFEST).write_text("no JSON")
    assert OwnNames.beside(tmp_path / MODEL) == OwnNames()
    shutil.copy(artifact.folder / MANIFEST, tmp_path)
    assert OwnNames.beside(tmp_path / MODEL).in_file == artifact.manifest["names"]
    (tmp_path / MODEL).write_bytes(residual().SerializeToString())
    assert OwnNames.beside(tmp_path / MODEL) == OwnNames()


def test_an_artifact_of_an_earlier_version_keeps_the_names_of_its_file(artifact: Artifact, tmp_path: Path) -> None:
    older = Path(shutil.copytree(artifact.folder, tmp_path / "out"))
    manifest = {name: value for name, value in artifact.manifest.items() if name != "names"}
    (older / MANIFEST).write_text(json.dumps(manifest))
    result = ptqc.bench(older)
    assert isinstance(result, FileBench)
    assert {operator.name for operator in result.operators} <= {*artifact.manifest["names"], "y"}


@pytest.mark.parametrize(
    ("value", "mark", "own"),
    [
        ("a/codes", "/", "a"),
        ("a/codes@1_1_1_1_0", "/", "a"),
        ("a/codes/codes", "/", "a/codes"),
        ("a/codes", "//", "a/codes"),
        ("a//codes", "//", "a"),
        ("a@2", "/", "a@2"),
        ("a@2/codes", "/", "a@2"),
        ("a/other", "/", "a/other"),
        ("a/codes", "", "a/codes"),
    ],
)
def test_what_kernels_make_is_called_like_the_models_values(value: str, mark: str, own: str) -> None:
    assert OwnNames(mark=mark).of_kernel(value) == own
