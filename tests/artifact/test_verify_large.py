"""An artifact beyond memory is checked without its weights in memory, unpacked or not."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from compiling import compiled, proto, weight

import ptqc
from ptqc.artifact import verify as verification
from ptqc.artifact.folder import MODEL, Artifact
from ptqc.errors import IntegrityError
from ptqc.execution.onnxruntime import Runner
from ptqc.ir import external
from ptqc.ir.external import has_references

GRAPH = "g (float[N,64] x) => (float[N,96] y) { a = MatMul(x, w) r = Relu(a) y = MatMul(r, v) }"
DATA = "model.data"


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has 4,000 bytes is beyond memory."""
    monkeypatch.setattr(external, "IN_MEMORY_LIMIT", 4000)


@pytest.fixture
def artifact(tmp_path: Path, limited: None, request: pytest.FixtureRequest) -> Artifact:  # noqa: ARG001
    model = proto(GRAPH, w=weight(64, 96), v=weight(96, 96))
    samples = np.random.default_rng(1).normal(size=(16, 64)).astype(np.float32)
    operators = getattr(request, "param", "standard")
    return compiled(model, samples, tmp_path, bits=(4,), activations="float", operators=operators)


@pytest.mark.parametrize("artifact", ["standard", "onnxruntime"], indirect=True)
def test_it_passes_without_being_unpacked(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[tuple[bool, bool]]()

    class Watched(Runner):
        def __init__(self, model: Any, *others: Any, lean: bool = False, **options: Any) -> None:
            if isinstance(model, onnx.ModelProto):
                opened.append((has_references(model), lean))
            super().__init__(model, *others, lean=lean, **options)

    monkeypatch.setattr(verification, "unpack", None)  # would be called
    monkeypatch.setattr(verification, "Runner", Watched)
    assert (artifact.folder / DATA).is_file()
    checks = ptqc.verify(artifact.folder, model=artifact.folder.parent / "model.onnx").checks
    assert opened == [(True, True)]
    assert checks["kernels"].startswith("0 integer kernels")
    assert checks["golden"] == "model.onnx gives the recorded outputs on 2 golden samples"
    assert "is the one that was compiled" in checks["model"]


@pytest.mark.parametrize("kind", ["FLOAT16", "BFLOAT16"])
def test_it_is_compared_with_a_model_in_half_precision(kind: str, tmp_path: Path, limited: None) -> None:  # noqa: ARG001
    half = getattr(onnx.TensorProto, kind)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(half)
    graph = GRAPH.replace("{", f"{{ h = Cast<to = {half}>(x)").replace("(x, w)", "(h, w)")
    model = proto(graph.replace("y = MatMul(r, v)", "s = MatMul(r, v) y = Cast<to = 1>(s)"))
    for name, array in (("w", weight(64, 96)), ("v", weight(96, 96))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(dtype), name))
    samples = np.random.default_rng(1).normal(size=(16, 64)).astype(np.float32)
    made = compiled(model, samples, tmp_path, bits=(4,), activations="float")
    assert "is the one that was compiled" in ptqc.verify(made.folder, model=tmp_path / "model.onnx").checks["model"]


def test_changed_data_are_found(artifact: Artifact) -> None:
    place = artifact.folder / DATA
    place.write_bytes(place.read_bytes()[::-1])
    with pytest.raises(IntegrityError, match=r"model\.data was changed after it was compiled"):
        ptqc.verify(artifact.folder)


def test_integers_are_compared_as_ever(tmp_path: Path, limited: None) -> None:  # noqa: ARG001
    model = proto(GRAPH, w=weight(64, 96), v=weight(96, 96))
    samples = np.random.default_rng(1).normal(size=(16, 64)).astype(np.float32)
    made = compiled(model, samples, tmp_path, bits=(4,), activations="integer")
    assert ptqc.verify(made.folder).checks["kernels"].startswith("2 integer kernels")


def test_initializers_without_a_length_are_as_long_as_their_type_says(tmp_path: Path) -> None:
    model = proto(GRAPH, w=weight(64, 96), v=weight(96, 96))
    wanted = Runner(model).run({"x": np.ones((1, 64), np.float32)})["y"]
    onnx.save(model, tmp_path / MODEL, save_as_external_data=True, location=DATA)
    read = onnx.load(tmp_path / MODEL, load_external_data=False)
    for tensor in read.graph.initializer:
        (entry,) = (entry for entry in tensor.external_data if entry.key == "length")
        tensor.external_data.remove(entry)
    external.refer_to_files(read, tmp_path / MODEL)
    assert np.allclose(Runner(read).run({"x": np.ones((1, 64), np.float32)})["y"], wanted, atol=1e-5)
