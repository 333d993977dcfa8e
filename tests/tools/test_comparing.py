"""Models beside each other: sizes are those of the files, figures are those that NumPy finds, mistakes are named."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from compiling import compiled, product, proto, quick, residual, samples, weight

import ptqc
from ptqc.artifact.folder import Artifact
from ptqc.cli.main import main
from ptqc.errors import ModelError, TargetError, UsageError
from ptqc.evaluation.judge import BEST_SQNR
from ptqc.ir import recorded, zipmaps
from ptqc.kv_cache import known
from ptqc.tools import comparing
from ptqc.tools.comparing import ModelComparison


@pytest.fixture
def float_file(coarse: Artifact) -> Path:
    return coarse.folder.parent / "model.onnx"


def found(*models: Path, **options: object) -> ModelComparison:
    with quick():
        return ptqc.compare(*models, **options)  # type: ignore[arg-type]


def saved(folder: Path, name: str, model: onnx.ModelProto) -> Path:
    onnx.save(model, folder / name)
    return folder / name


def outputs(path: Path, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, {"x": row[None]})[0] for row in x])


def test_a_file_and_its_artifact(coarse: Artifact, float_file: Path) -> None:
    x = samples(3, 8, 8, count=12, seed=3)
    first, second = found(float_file, coarse.folder, data=x, samples=12).models
    assert (first.bytes, second.bytes) == (float_file.stat().st_size, coarse.path.stat().st_size)
    assert first.loss is None
    wanted, got = outputs(float_file, x), outputs(coarse.path, x)
    assert second.top1_agreement == np.mean(wanted.argmax(1) == got.argmax(1))
    assert second.changed == tuple(f"samples[{i}]" for i in np.flatnonzero(wanted.argmax(1) != got.argmax(1)))
    error = np.square(wanted.astype(np.float64) - got).sum()
    assert second.sqnr_db == pytest.approx(10 * np.log10(np.square(wanted, dtype=np.float64).sum() / error), rel=1e-6)


def test_samples_with_another_answer_are_named(float_file: Path, tmp_path: Path) -> None:
    model = onnx.load(float_file)
    bias = next(tensor for tensor in model.graph.initializer if tensor.name == "b4")
    bias.CopyFrom(onnx.numpy_helper.from_array(np.eye(10, dtype=np.float32)[3] * 100, "b4"))
    x = samples(3, 8, 8, count=20, seed=3)
    changed = np.flatnonzero(outputs(float_file, x).argmax(1) != 3)
    result = found(float_file, saved(tmp_path, "threes.onnx", model), data=x)
    assert result.models[1].changed == tuple(f"samples[{i}]" for i in changed)
    assert f"another top class in {tmp_path / 'threes.onnx'}: samples[{changed[0]}], " in str(result)
    assert f" and {len(changed) - 8} more" in str(result)


def test_without_samples_the_golden_ones_are_run(coarse: Artifact, float_file: Path) -> None:
    assert found(float_file, coarse.folder).samples == f"2 golden samples of {coarse.folder}"


def test_without_any_samples_are_drawn_and_equal_files_say_so(float_file: Path) -> None:
    comparison = found(float_file, float_file, threads=2)
    assert comparison.samples == comparing.DRAWN
    assert "equal" in str(comparison).splitlines()[2]
    assert "with 2 threads" in str(comparison)


def test_the_larger_product_is_slower(tmp_path: Path) -> None:
    graph = "g (float[N,{0}] x) => (float[N,{0}] y) {{ h = MatMul(x, w) z = MatMul(h, v) y = Mul(z, zero) }}"
    files = [
        saved(
            tmp_path,
            f"{inner}.onnx",
            proto(graph.format(64), w=weight(64, inner), v=weight(inner, 64), zero=np.float32(0)),
        )
        for inner in (2048, 64)
    ]
    first, second = found(*files).models
    assert 1 < (second.low or 0) <= (second.speedup or 0)
    assert (first.milliseconds or 0) > (second.milliseconds or 0) > 0


@pytest.mark.parametrize("key", [zipmaps.KEY, recorded.KEY, known.FORM])
def test_marks_of_ptqc_in_a_foreign_file_mean_nothing(tmp_path: Path, key: str) -> None:
    model = product()
    for message in (model.graph, *model.graph.node, *model.graph.output):
        message.metadata_props.add(key=key, value="no JSON")
    path = saved(tmp_path, "marked.onnx", model)
    assert found(path, path, data=samples(16, count=4)).models[1].loss == pytest.approx(0)


def test_external_data_counts(tmp_path: Path) -> None:
    whole = saved(tmp_path, "whole.onnx", product())
    split = tmp_path / "split.onnx"
    onnx.save(product(), split, save_as_external_data=True, location="w.bin", size_threshold=0)
    rows = found(whole, split).models
    assert rows[1].bytes == split.stat().st_size + (tmp_path / "w.bin").stat().st_size
    assert rows[1].sqnr_db == BEST_SQNR


def test_a_model_of_integers_alone_is_timed(tmp_path: Path) -> None:
    path = saved(tmp_path, "m.onnx", proto("g (float[N,4] x) => (int64[N,1] y) { y = ArgMax(x) }"))
    first, second = found(path, path).models
    assert first.loss is None
    assert (second.loss, second.outputs[0].judged_as) == (0, "labels")


def test_json(coarse: Artifact, float_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with quick():
        assert main(["compare", str(float_file), str(coarse.folder), "-q"]) == 0
        quiet = capsys.readouterr()
        assert main(["compare", str(float_file), str(coarse.folder), "--json"]) == 0
    assert (quiet.out.split()[:3], quiet.err) == (["model", "runs", "in"], "")
    document = json.loads(capsys.readouterr().out)
    first, second = document["models"]
    assert (first["bytes_of_first"], first["speedup"], first["outputs"]) == (1, 1, [])
    assert second["bytes"] == coarse.path.stat().st_size
    assert second["outputs"][0]["name"] == "y"


def test_mistakes_are_named(coarse: Artifact, float_file: Path, tmp_path: Path) -> None:
    other_input = saved(tmp_path, "a.onnx", proto("g (float[N,3,8,8] z) => (float[N,3,8,8] y) { y = Relu(z) }"))
    other_output = saved(tmp_path, "b.onnx", proto("g (float[N,3,8,8] x) => (float[N,3,8,8] z) { z = Relu(x) }"))
    other_shape = saved(tmp_path, "c.onnx", proto("g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"))
    for file, error, message in (
        (other_input, UsageError, r"takes the inputs \['z'\], but .* takes \['x'\]"),
        (other_output, UsageError, "has no output 'y'"),
        (other_shape, ModelError, "does not run on these samples"),
        (tmp_path, UsageError, "is not a folder that `ptqc compile` wrote"),
        (tmp_path / "none.onnx", ModelError, "no such file"),
    ):
        with pytest.raises(error, match=message):
            found(float_file, file)
    with pytest.raises(UsageError, match="nothing to compare"):
        found(float_file)
    with pytest.raises(UsageError, match="threads = 0"):
        found(float_file, coarse.folder, threads=0)
    with pytest.raises(UsageError, match="threads = -1; give a positive number, or 0 for all processors"):
        ptqc.run(float_file, {"x": samples(3, 8, 8)}, output="y.npz", threads=-1)


@pytest.mark.slow
def test_an_artifact_runs_in_runtimes_of_others(coarse: Artifact, float_file: Path, tmp_path: Path) -> None:
    """Its loss there stands beside that in ONNX Runtime; the time does not. A packed file is refused."""
    pytest.importorskip("onnxruntime_qnn", reason="needs pip install 'ptqc[qnn]'")
    with pytest.raises(TargetError, match=r"Qualcomm HTP .* refuses it: the NPU takes none of its operators"):
        found(float_file, coarse.folder, runtimes=["qnn"])
    artifact = compiled(residual(), samples(3, 8, 8), tmp_path, "25%", target="qdq", verify_in="", runtime="qnn")
    _, here, there = found(float_file, artifact.folder, runtimes=["qnn"]).models
    assert there.runtime.startswith("Qualcomm HTP ")
    assert there.milliseconds is None
    assert (there.placement, here.placement) == ("4 of 4 layers on integers", None)
    assert there.sqnr_db == pytest.approx(here.sqnr_db, abs=1.0)
