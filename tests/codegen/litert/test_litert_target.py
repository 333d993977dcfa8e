"""The TFLite model as a compile delivers it: compared with the packed file in LiteRT."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from compiling import compiled, compiled_once, proto, residual, samples, store_of, weight

import ptqc
from ptqc.artifact.folder import Artifact
from ptqc.cli.main import main
from ptqc.codegen.litert import target as litert_target
from ptqc.codegen.litert.target import TARGET
from ptqc.errors import TargetError, UsageError, VerificationError
from ptqc.runtime import foreign

pytestmark = pytest.mark.skipif(foreign.find_spec("ai_edge_litert") is None, reason="needs pip install 'ptqc[litert]'")
OPTIONS: dict[str, Any] = {"target": "litert", "activations": "integer"}


@pytest.fixture(scope="module")
def artifact(shared_room: Path) -> Artifact:
    """A small network with its TFLite model."""
    return compiled_once(residual(), samples(3, 8, 8), shared_room / "litert", "25%", **OPTIONS)


def test_it_is_delivered_with_what_it_gives(artifact: Artifact) -> None:
    document = artifact.manifest["targets"]["litert"]
    assert document["bytes"] == (artifact.folder / "litert" / "model.tflite").stat().st_size
    assert document["bytes_zipped"] < document["bytes"]
    fast, reference = (document["runtimes"][name] for name in ("litert", "litert_reference"))
    assert fast["title"].startswith("LiteRT ")
    assert reference["title"] == f"{fast['title']}, reference kernels"
    for check in (fast, reference):
        assert check["placement"] == "4 of 4 layers on integers"
        assert 0 < check["loss"] < 1e-3 > check["packed_loss"] > 0


def test_it_is_verified_and_compared_there(artifact: Artifact, capsys: pytest.CaptureFixture[str]) -> None:
    checked = ptqc.verify(artifact.folder, runtimes=["litert"]).checks["litert"]
    assert checked.startswith("litert/model.tflite in LiteRT ")
    assert checked.endswith("4 of 4 layers on integers")
    assert main(["verify", str(artifact.folder), "--runtime", "litert"]) == 0
    assert "in LiteRT" in capsys.readouterr().out
    assert main(["compare", str(artifact.folder), str(artifact.folder), "--runtime", "litert", "--samples", "2"]) == 0
    assert "LiteRT" in capsys.readouterr().out


def test_it_runs_with_names_and_layout_of_the_model(artifact: Artifact) -> None:
    feeds = {"x": samples(3, 8, 8, seed=3)[:1]}
    (outputs,) = foreign.run_in("litert", artifact.folder / "litert" / "model.tflite", [feeds]).outputs
    wanted = artifact.session().run(None, feeds)[0]
    assert np.abs(outputs["y"] - wanted).max() < np.ptp(wanted) / 20


def test_an_artifact_without_one_is_told_how_to_get_it(tmp_path: Path) -> None:
    model = proto("g (float[N,16] x) => (float[N,32] y) { y = Gemm(x, w) }", w=weight(16, 32))
    without = compiled(model, samples(16), tmp_path, "40%")
    with pytest.raises(TargetError, match=r"LiteRT takes litert/model.tflite.*: ptqc resolve .* --target litert"):
        ptqc.verify(without.folder, runtimes=["litert"])


@pytest.mark.slow
def test_layers_in_float_are_told(tmp_path: Path) -> None:
    artifact = compiled(residual(), samples(3, 8, 8), tmp_path, "25%", target="litert", activations="float")
    placement = artifact.manifest["targets"]["litert"]["runtimes"]["litert"]["placement"]
    assert placement == "0 of 4 layers on integers (not a in float32, b in float32, c in float32, …)"


def test_an_operator_without_a_rule_is_named_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TARGET, "build", None)
    model = proto("g (float[N,16] x) => (float[N,32] y) { h = Gemm(x, w) y = Erf(h) }", w=weight(16, 32))
    with pytest.raises(TargetError, match="litert has no rule for Erf 'y'"):
        compiled(model, samples(16), tmp_path, "60%", **OPTIONS)


def test_what_depends_on_constants_and_shapes_needs_no_rule() -> None:
    text = "g (float[N,16] x) => (float[N,16] y) { s = Shape(x) g = Gather(s, i) e = Erf(c) p = Add(x, e) y = Relu(p) }"
    TARGET.check_kernels(ir.from_proto(proto(text, i=np.int64(0), c=np.float32(1))))


def test_what_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(foreign, "find_spec", lambda _name: None)
    with pytest.raises(TargetError, match=r"LiteRT is not installed: pip install 'ptqc\[litert\]'"):
        compiled(residual(), samples(3, 8, 8), tmp_path, "25%", **OPTIONS)


def test_samples_of_several_sizes_are_refused() -> None:
    with pytest.raises(TargetError, match="the litert target fixes the shapes of the model, and the samples have 2"):
        TARGET.check_sizes([((3, 8, 8),), ((3, 9, 9),)], None)  # type: ignore[arg-type]


@pytest.mark.parametrize("kernels", ["AUTO", pytest.param("BUILTIN_REF", marks=pytest.mark.slow)])
def test_wrong_outputs_are_not_delivered(
    kernels: str, artifact: Artifact, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = foreign.run_in

    def garbage(name: str, *arguments: Any, **options: Any) -> foreign.ForeignRun:
        result = run(name, *arguments, **options)
        for outputs in result.outputs if options["kernels"] == kernels else ():
            for output in outputs.values():
                output *= -1
        return result

    monkeypatch.setattr(litert_target, "run_in", garbage)
    with pytest.raises(VerificationError, match=r"LiteRT \S+ .*gives something else for output 'y'"):
        compiled(residual(), samples(3, 8, 8), tmp_path, "25%", cache=store_of(artifact), **OPTIONS)


@pytest.mark.slow
def test_the_target_implies_the_runtime_that_the_plan_is_solved_for(tmp_path: Path) -> None:
    """But for what the user says."""
    artifact = compiled(residual(), samples(3, 8, 8), tmp_path, None, target="litert")
    assert artifact.manifest["options"]["runtime"] == "litert"
    assert artifact.manifest["options"]["activations"] == "integer"
    again: dict[str, Any] = {"output": tmp_path / "again", "cache": store_of(artifact)}
    assert ptqc.resolve(artifact.folder, **again).manifest["options"]["runtime"] == "litert"
    with pytest.raises(UsageError, match="give runtime to `ptqc compile`: `ptqc resolve` keeps what was compiled"):
        ptqc.resolve(artifact.folder, **{**again, "runtime": "qnn"})


def test_graphs_inside_of_operators_are_refused_before_measuring(tmp_path: Path) -> None:
    """Also where all inputs of the operator are constants, as it reads others from outside."""
    graph = """g (float[N,16] x) => (float[3,N,32] z) {
        y = MatMul(x, w)
        z = Loop(m, c) <body = b (int64 i, bool d) => (bool e, float[N,32] a) { e = Identity(d) a = Add(y, k) }>
    }"""
    model = proto(graph, w=weight(16, 32), k=weight(32), m=np.int64(3), c=np.bool_(True))
    with pytest.raises(TargetError, match="litert has no rule for Loop 'z'"):
        compiled(model, samples(16), tmp_path, None, target="litert")


def test_convolutions_along_three_axes_are_refused(tmp_path: Path) -> None:
    graph = "g (float[N,3,4,4,4] x) => (float[N,8,4,4,4] y) { y = Conv <pads = [1, 1, 1, 1, 1, 1]> (x, w) }"
    with pytest.raises(TargetError, match=r"litert has no rule for Conv 'y.*' along 3 axes"):
        compiled(proto(graph, w=weight(8, 3, 3, 3, 3)), samples(3, 4, 4, 4), tmp_path, None, target="litert")
