"""Compiles in FP8: what the file has, and what cannot be asked for together."""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from compiling import compiled, proto, quick, residual, samples, weight

import ptqc
from ptqc.artifact.folder import Artifact
from ptqc.errors import TargetError, UsageError
from ptqc.options import CompileOptions

FLOAT8 = onnx.TensorProto.FLOAT8E4M3FN


@pytest.fixture(scope="module")
def float8(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return compiled(residual(), samples(3, 8, 8), tmp_path_factory.mktemp("float8"), None, activations="float8")


def test_layers_read_float8_behind_quantize_and_dequantize(float8: Artifact) -> None:
    file = onnx.load(float8.path)
    makers = {name: node for node in file.graph.node for name in node.output}
    types = {tensor.name: tensor.data_type for tensor in file.graph.initializer}
    layers = [node for node in file.graph.node if node.op_type == "Conv"]
    assert layers
    for layer in layers:
        x, weight = (makers.get(name) for name in layer.input[:2])
        assert weight is not None
        assert (weight.op_type, types[weight.input[0]]) == ("DequantizeLinear", FLOAT8)
        assert x is not None
        assert x.op_type == "DequantizeLinear"
        assert makers[x.input[0]].op_type == "QuantizeLinear"
    assert not file.functions
    assert Counter(entry["format"] for entry in float8.plan["activations"]).keys() == {"float8_e4m3fn"}
    assert float8.manifest["weights_by_format"].keys() == {"float8_e4m3fn"}


def test_a_table_of_which_rows_are_picked_may_be_in_float8(tmp_path: Path) -> None:
    graph = "g (int64[N,T] tokens) => (float[N,T,32] y) { h = Gather(table, tokens) y = MatMul(h, w) }"
    table, matrix = weight(512, 32), np.ascontiguousarray(weight(32, 32, seed=1).T)
    tokens = np.random.default_rng(0).integers(0, 512, (8, 1, 6))
    model, feeds = proto(graph, table=table, w=matrix), [{"tokens": each} for each in tokens]
    artifact = compiled(model, feeds, tmp_path, "40%", activations="float8")
    assert artifact.manifest["weights_by_format"] == {"float8_e4m3fn": table.size + matrix.size}
    wanted = table[tokens[0]] @ matrix
    assert np.square(artifact.run(feeds[0])["y"] - wanted).mean() < 0.01 * np.square(wanted).mean()


def test_outputs_stay_close_to_those_of_the_float_model(float8: Artifact) -> None:
    """Eight levels to a power of two: 31 dB for each of the six roundings on the way."""
    session = ort.InferenceSession(residual().SerializeToString())
    feeds = {"x": samples(3, 8, 8)[:4]}
    for name, result in float8.run(feeds).items():
        (wanted,) = session.run([name], feeds)
        assert 20 < 10 * np.log10(np.square(wanted).mean() / np.square(result - wanted).mean()) < 40


def test_it_is_verified_and_reported(float8: Artifact) -> None:
    ptqc.verify(float8.folder)
    page = (float8.folder / "report.html").read_text()
    assert "rounded to float8_e4m3fn" in page


def test_resolve_gives_the_same_bytes(float8: Artifact, tmp_path: Path) -> None:
    with quick():
        again = ptqc.resolve(float8.folder, output=tmp_path / "again", cache=float8.folder.parent / "cache")
    assert again.path.read_bytes() == float8.path.read_bytes()


def test_a_scale_of_the_plan_can_be_edited(float8: Artifact, tmp_path: Path) -> None:
    plan = json.loads((float8.folder / "plan.json").read_text())
    plan["activations"][0]["scale"] *= 2
    with quick():
        again = ptqc.resolve(float8.folder, plan=plan, output=tmp_path / "again", cache=float8.folder.parent / "cache")
    entry = again.plan["activations"][0]
    assert entry["scale"] == pytest.approx(plan["activations"][0]["scale"])
    feeds = {"x": np.zeros((1, 3, 8, 8), np.float32)}
    assert all(np.isfinite(value).all() for value in again.run(feeds).values())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sparsity", "2:4"),
        ("operators", "onnxruntime"),
        ("operators", "dequantize"),
        ("float_layers", "bfloat16"),
        ("formats", ("int",)),
    ],
)
def test_other_numbers_cannot_be_asked_for_as_well(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=re.escape(f"activations is 'float8' and {name} is {value!r}")):
        CompileOptions.of({"activations": "float8", name: value})


def test_biases_are_in_steps_to_which_onnx_runtime_rounds_them(float8: Artifact) -> None:
    file = onnx.load(float8.path)
    makers = {name: node for node in file.graph.node for name in node.output}
    numbers = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in file.graph.initializer}
    layers = [node for node in file.graph.node if node.op_type == "Conv"]
    for layer in layers:
        x, weight = (numbers[makers[name].input[1]] for name in layer.input[:2])
        steps = numbers[layer.input[2]] / (x * weight)
        np.testing.assert_allclose(steps, np.rint(steps), rtol=1e-6)
        assert np.abs(steps).max() > 100


def test_no_library_for_processors_is_built_for_it(float8: Artifact, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="activations is 'float8', for which the target cpu has no kernels"):
        compiled(residual(), samples(3, 8, 8), tmp_path, None, activations="float8", target="cpu")
    with quick(), pytest.raises(TargetError, match="FP8 has no kernels here; compile without --activations float8"):
        ptqc.resolve(float8.folder, output=tmp_path / "again", cache=float8.folder.parent / "cache", target="cpu")
