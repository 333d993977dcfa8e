"""The QDQ model as a compile delivers it: compared with the packed file in ONNX Runtime, OpenVINO and on the HTP."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from compiling import compiled, compiled_once, product, proto, residual, samples, store_of, weight

import ptqc
from ptqc.artifact.folder import Artifact
from ptqc.cli.main import main
from ptqc.codegen.qdq import target as qdq_target
from ptqc.codegen.qdq.options import QdqOptions
from ptqc.codegen.qdq.target import TARGET
from ptqc.errors import TargetError, UsageError, VerificationError
from ptqc.execution.onnxruntime import Runner
from ptqc.runtime import foreign

INTEGERS = r"4 of 4 layers on integers"


@pytest.fixture(scope="module")
def artifact(shared_room: Path) -> Artifact:
    """A small network with its QDQ model."""
    return compiled_once(residual(), samples(3, 8, 8), shared_room / "qdq", "25%", target="qdq", activations="integer")


def again(artifact: Artifact, folder: Path, **options: Any) -> Artifact:
    """The same compile, with the measurements of the artifact."""
    more = {"cache": store_of(artifact), "target": "qdq", "activations": "integer", **options}
    return compiled(residual(), samples(3, 8, 8), folder, "25%", **more)


@pytest.mark.long
def test_it_gives_what_the_packed_file_gives(artifact: Artifact) -> None:
    model = onnx.load(artifact.folder / "qdq" / "model.onnx")
    x = samples(3, 8, 8, seed=3)[:1]
    packed, plain = (Runner(each).run({"x": x})["y"] for each in (onnx.load(artifact.path), model))
    step = np.ptp(plain) / 20
    assert np.abs(packed - plain).max() < step
    document = artifact.manifest["targets"]["qdq"]
    assert document["bytes"] == (artifact.folder / "qdq" / "model.onnx").stat().st_size
    assert document["bytes_zipped"] < document["bytes"]
    assert document["runtimes"]["onnxruntime"]["note"] == "outputs equal the packed file's"


@pytest.mark.long
@pytest.mark.parametrize("name", ["openvino", "qnn"])
def test_it_runs_elsewhere(artifact: Artifact, name: str) -> None:
    """All layers on integers there, in the compile and when the artifact is verified."""
    module = foreign.runtime_named(name).module
    pytest.importorskip(module, reason=f"needs pip install 'ptqc[{name}]'")
    check = artifact.manifest["targets"]["qdq"]["runtimes"][name]
    assert check["placement"] == INTEGERS
    assert 0 < check["loss"] < 1e-3 > check["packed_loss"] > 0
    checked = ptqc.verify(artifact.folder, runtimes=[name]).checks[name]
    assert checked.startswith("qdq/model.onnx in ")
    assert INTEGERS in checked


def test_the_command_verifies_there_too(artifact: Artifact, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openvino", reason="needs pip install 'ptqc[openvino]'")
    assert main(["verify", str(artifact.folder), "--runtime", "openvino"]) == 0
    assert "in OpenVINO" in capsys.readouterr().out


def test_a_packed_file_is_refused_with_what_to_do(artifact: Artifact, tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="needs pip install 'ptqc[openvino]'")
    without = compiled(product(), samples(16), tmp_path, "40%")
    if onnx.load(without.path).functions:
        with pytest.raises(TargetError, match=r"takes the QDQ model: ptqc resolve .* --target qdq"):
            ptqc.verify(without.folder, runtimes=["openvino"])
    assert artifact.folder.is_dir()


@pytest.mark.slow
def test_contexts_are_written_for_the_chips_named(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn", reason="needs pip install 'ptqc[qnn]'")
    more: dict[str, Any] = {"target": "qdq", "verify_in": "qnn", "chips": "v73,v79", "activations": "integer"}
    artifact = compiled(residual(), samples(3, 8, 8), tmp_path, "25%", **more)
    document = artifact.manifest["targets"]["qdq"]
    for chip in ("v73", "v79"):
        assert document[f"{chip}_bytes"] == (artifact.folder / "qdq" / f"{chip}.bin").stat().st_size > 0
    assert document["runtimes"]["openvino"]["note"] == "not verified: not asked for"


def test_what_is_not_installed_is_told(artifact: Artifact, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(foreign, "find_spec", lambda _name: None)
    without = again(artifact, tmp_path)
    document = without.manifest["targets"]["qdq"]
    assert document["runtimes"]["qnn"]["note"] == "not verified: pip install 'ptqc[qnn]'"
    assert "NOT VERIFIED" not in without.summary()
    for options in (QdqOptions(verify_in="openvino"), QdqOptions(chips="v75")):
        with pytest.raises(TargetError, match="is not installed: pip install"):
            TARGET.check_options(options)


def test_options_are_names() -> None:
    with pytest.raises(UsageError, match="verify_in is 'tflite'; known: installed, openvino, qnn"):
        QdqOptions(verify_in="tflite")
    with pytest.raises(UsageError, match="chips is 'v60'; known: v68, "):
        QdqOptions(chips="v73, v60")
    with pytest.raises(UsageError, match="chips is 75; give names"):
        QdqOptions(chips=75)  # type: ignore[arg-type]


def test_samples_of_several_sizes_are_refused() -> None:
    with pytest.raises(TargetError, match="the samples have 2 sizes"):
        TARGET.check_sizes([((3, 8, 8),), ((3, 9, 9),)], None)  # type: ignore[arg-type]


def test_models_that_draw_are_refused(tmp_path: Path) -> None:
    """Before anything is measured."""
    graph = "g (float[N,16] x) => (float[N,8] y) { h = Gemm(x, w) d = RandomNormalLike(h) y = Add(h, d) }"
    with pytest.raises(TargetError, match=r"something else in every run, and '.*' is the output of a RandomNormalLike"):
        compiled(proto(graph, w=weight(16, 8)), samples(16), tmp_path, None, target="qdq")


def test_a_full_disk_delivers_nothing(artifact: Artifact, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(qdq_target, "run_in", full)
    with pytest.raises(OSError, match="No space left on device"):
        again(artifact, tmp_path, verify_in="openvino")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_runtime_that_computes_something_else_fails(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing is delivered, as silent garbage is what such runtimes give of models that they do not take."""
    pytest.importorskip("openvino", reason="needs pip install 'ptqc[openvino]'")
    run = foreign.run_in

    def garbage(name: str, *arguments: Any, **options: Any) -> foreign.ForeignRun:
        result = run(name, *arguments, **options)
        for outputs in result.outputs:
            for output in outputs.values():
                output *= -1
        return result

    monkeypatch.setattr(qdq_target, "run_in", garbage)
    with pytest.raises(VerificationError, match=r"OpenVINO \S+ gives something else for output 'y'"):
        again(artifact, tmp_path, verify_in="openvino")


@pytest.mark.slow
def test_outputs_beyond_the_range_are_no_fault_of_a_runtime(tmp_path: Path) -> None:
    """What is held back reaches further here than what ranges are taken from; the rounding cuts it off everywhere."""
    pytest.importorskip("openvino", reason="needs pip install 'ptqc[openvino]'")
    graph = "g (float[N,16] x) => (float[N,32] y) { h = MatMul(x, w) r = Relu(h) y = MatMul(r, v) }"
    data = samples(16)
    data[::4] *= 3
    model = proto(graph, w=weight(16, 32), v=weight(32, 32, seed=5))
    artifact = compiled(model, data, tmp_path, None, target="qdq", activations="integer", verify_in="openvino")
    assert artifact.manifest["targets"]["qdq"]["runtimes"]["onnxruntime"]["note"].startswith("outputs equal")


def test_a_clip_stays_where_nothing_rounds_it_for_tensorrt(tmp_path: Path) -> None:
    graph = """g (float[N,3,8,8] x) => (float[N,16,8,8] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, w, b)
        r = Relu(a)
        c = Conv <pads = [1, 1, 1, 1]> (r, v, b)
        y = Clip(c, low, high)
    }"""
    weights = {"w": weight(16, 3, 3, 3), "v": weight(16, 16, 3, 3, seed=2), "b": weight(16, seed=9)}
    model = proto(graph, low=np.float32(0), high=np.float32(3), **weights)
    artifact = compiled(model, samples(3, 8, 8), tmp_path, None, target="qdq", runtime="tensorrt")
    x = 2 * samples(3, 8, 8, seed=99)[:1]
    (y,) = Runner(onnx.load(artifact.folder / "qdq" / "model.onnx")).run({"x": x}).values()
    assert 2.9 < y.max() < 3.1


BRANCHES = """g (float[N,16] x) => (float[N,32] y) {
    h = MatMul(x, w)
    r = Relu(h)
    s = ReduceMean <keepdims = 0> (x)
    is_more = Greater(s, zero)
    q = If(is_more) <
        then_branch = t () => (float[N,32] a) { a = Add(r, k) },
        else_branch = e () => (float[N,32] b) { b = Sub(r, k) }
    >
    y = MatMul(q, v)
}"""


def branches() -> onnx.ModelProto:
    """A network whose branches have values of one letter, as constants get."""
    return proto(BRANCHES, w=weight(16, 32), v=weight(32, 32, seed=5), k=weight(32), zero=np.float32(0))


@pytest.mark.slow
def test_names_inside_of_branches_are_no_names_of_constants(tmp_path: Path) -> None:
    artifact = compiled(branches(), samples(16), tmp_path, None, target="qdq", activations="integer", verify_in="")
    assert artifact.manifest["targets"]["qdq"]["runtimes"]["onnxruntime"]["note"].startswith("outputs equal")


def test_control_flow_is_refused_for_tensorrt(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"breaks a rule of tensorrt: If .*: runs a graph of its own"):
        compiled(branches(), samples(16), tmp_path, None, target="qdq", runtime="tensorrt")


def test_scales_of_other_numbers_are_refused_for_xdna(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"breaks a rule of xdna: .*not a power of two"):
        compiled(product(), samples(16), tmp_path, None, target="qdq", runtime="xdna", scales="free")


def test_other_runtimes_are_not_run_for_tensorrt(tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="needs pip install 'ptqc[openvino]'")
    with pytest.raises(TargetError, match="leave --verify-in, --chips and --int4 out"):
        compiled(product(), samples(16), tmp_path, None, target="qdq", runtime="tensorrt", verify_in="openvino")
