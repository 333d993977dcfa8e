"""One network written in many ways: types of numbers, opsets, external data, metadata."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from compiling import assert_same_interface, compiled, product, proto, residual, samples, store_of, weight
from mostly_slow import mostly_slow
from onnx import TensorProto, helper, numpy_helper

import ptqc
from ptqc.artifact.folder import Artifact
from ptqc.errors import ModelError
from ptqc.execution.onnxruntime import Runner


def in_type(model: onnx.ModelProto, dtype: type[np.floating[Any]]) -> onnx.ModelProto:
    """A float32 model in another precision."""
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor).astype(dtype)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return model


@pytest.mark.long
def test_a_float64_model_is_taken_where_that_is_meant(small: Artifact, tmp_path: Path) -> None:
    model, x = in_type(residual(), np.float64), samples(3, 8, 8, count=3, seed=11)
    with pytest.raises(ModelError, match="'x' is float64"):
        compiled(model, samples(3, 8, 8).astype(np.float64), tmp_path)
    result = compiled(model, samples(3, 8, 8).astype(np.float64), tmp_path, "12%", cast_double=True)
    assert_same_interface(model, onnx.load(result.path))
    y = result.run({"x": x.astype(np.float64)})["y"]
    assert y.dtype == np.float64
    assert np.allclose(y, small.run({"x": x})["y"], atol=0.2)
    assert "computes in float32 inside; inputs and outputs keep their type" in str(result.manifest["notes"])
    assert "is the one that was compiled" in ptqc.verify(result.folder, model=tmp_path / "model.onnx").checks["model"]


def test_float64_behind_the_last_layer_stays(tmp_path: Path) -> None:
    graph = """g (float[N,64] x) => (double[N] pitch) {
        h = Gemm<transB=1>(x, w)
        d = Cast<to=11>(h)
        s = Softmax<axis=1>(d)
        m = Mul(s, bins)
        r = ReduceSum<keepdims=0>(m, axes)
        pitch = Exp(r)
    }"""
    model = proto(graph, w=weight(64, 64), bins=np.linspace(0, 2, 64)[None], axes=np.array([1]))
    result = compiled(model, samples(64), tmp_path, "40%")
    delivered, x = onnx.load(result.path), samples(64, count=8)
    assert_same_interface(model, delivered)
    assert TensorProto.DOUBLE in {tensor.data_type for tensor in delivered.graph.initializer}
    y = result.run({"x": x})["pitch"]
    assert y.dtype == np.float64
    assert np.allclose(y, Runner(model).run({"x": x})["pitch"], rtol=0.1)
    assert "is the one that was compiled" in ptqc.verify(result.folder, model=tmp_path / "model.onnx").checks["model"]


def test_a_model_takes_strings(tmp_path: Path) -> None:
    words = ["to", "be", "or", "not"]
    graph = """g (string[N,3] x) => (float[N,6] y) {
        h = TfIdfVectorizer<max_gram_length=1, max_skip_count=0, min_gram_length=1, mode="TF", ngram_counts=[0],
            ngram_indexes=[0,1,2,3], pool_strings=["to","be","or","not"]>(x)
        y = Gemm(h, w)
    }"""
    model, draw = proto(graph, w=weight(4, 6)), np.random.default_rng(0)
    result = compiled(model, [{"x": draw.choice(words, (2, 3))} for _ in range(8)], tmp_path)
    x = np.array([["to", "be", "or"], ["not", "to", "be"]])
    assert np.allclose(result.run({"x": x})["y"], Runner(model).run({"x": x})["y"], atol=0.1)
    assert "gives the recorded outputs on 2 golden samples" in str(ptqc.verify(result.folder))


@pytest.mark.slow
def test_a_half_precision_model_keeps_its_interface(tmp_path: Path) -> None:
    model = in_type(residual(), np.float16)
    result = compiled(model, samples(3, 8, 8).astype(np.float16), tmp_path, "50%", activations="integer")
    assert_same_interface(model, onnx.load(result.path))
    assert result.run({"x": samples(3, 8, 8, count=3).astype(np.float16)})["y"].dtype == np.float16
    assert result.manifest["verification"]["operators"]["QLinearConv"] == 3


@pytest.mark.slow
def test_external_data_are_read_and_counted(small: Artifact, tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    path = tmp_path / "given" / "model.onnx"
    onnx.save(residual(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    result = compiled(path, samples(3, 8, 8), tmp_path, "25%", activations="integer")
    assert result.manifest["source"]["bytes"] == sum(p.stat().st_size for p in (tmp_path / "given").iterdir())
    assert sorted(p.name for p in result.folder.iterdir()) == sorted(p.name for p in small.folder.iterdir())
    x = samples(3, 8, 8, seed=11)
    assert np.allclose(result.run({"x": x})["y"], small.run({"x": x})["y"], atol=0.2)


@pytest.mark.parametrize("opset", mostly_slow([7, 21], 7))
def test_older_and_newer_opsets_give_the_same_outputs(small: Artifact, tmp_path: Path, opset: int) -> None:
    result = compiled(residual(opset), samples(3, 8, 8), tmp_path, "25%", activations="integer")
    x = samples(3, 8, 8, seed=11)
    assert np.array_equal(result.run({"x": x})["y"], small.run({"x": x})["y"])
    assert result.manifest["file"]["opset"] == max(opset, 18)


def test_metadata_are_kept(tmp_path: Path) -> None:
    model = product()
    onnx.helper.set_model_props(model, {"author": "someone", "classes": "{0: 'cat'}"})
    result = compiled(model, samples(16), tmp_path)
    assert_same_interface(model, onnx.load(result.path))


def test_what_a_model_says_of_itself_is_kept(tmp_path: Path) -> None:
    model = product()
    model.model_version, model.domain, model.doc_string = 7, "org.example", "a product"
    model.graph.name, model.graph.doc_string = "product_of_rows", "one layer"
    model.graph.input[0].doc_string, model.graph.output[0].doc_string = "rows", "features"
    artifact = compiled(model, samples(16), tmp_path)
    result = onnx.load(artifact.path)
    assert (result.model_version, result.domain, result.doc_string) == (7, "org.example", "a product")
    assert (result.graph.name, result.graph.doc_string) == ("product_of_rows", "one layer")
    assert (result.graph.input[0].doc_string, result.graph.output[0].doc_string) == ("rows", "features")
    described = ort.InferenceSession(str(artifact.path)).get_modelmeta()
    assert (described.version, described.graph_name, described.description) == (7, "product_of_rows", "a product")


@pytest.mark.slow
def test_what_exporters_write_beside_the_network_takes_no_bytes_of_the_budget(small: Artifact, tmp_path: Path) -> None:
    annotated = residual()
    for node in annotated.graph.node:
        node.metadata_props.add(key="pkg.torch.onnx.stack_trace", value="File net.py, in forward\n" * 100)
        node.doc_string = "a layer"
    limit = small.manifest["allocation"]["limit"]
    result = compiled(annotated, samples(3, 8, 8), tmp_path, f"{limit}B", cache=store_of(small), activations="integer")
    assert result.manifest["source"]["bytes"] == annotated.ByteSize() > 2 * limit
    assert result.path.read_bytes() == small.path.read_bytes()
