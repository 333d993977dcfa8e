import json
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import onnx
import pytest
from compiling import compiled, quick, residual, samples

import ptqc
from ptqc.artifact.folder import Artifact
from ptqc.codegen.targets import choose
from ptqc.options import CompileOptions
from ptqc.passes.allocate.activations_in_float import _in_bfloat16
from ptqc.passes.allocate.state import CompileState
from ptqc.tools import sweep


@pytest.fixture(scope="module")
def rounded(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """All in float, with the inputs of convolutions in bfloat16."""
    folder = tmp_path_factory.mktemp("rounded")
    return compiled(residual(), samples(3, 8, 8), folder, "30%", activations="float", float_layers="bfloat16")


def casts(artifact: Artifact) -> int:
    return casts_in(onnx.load(artifact.path))


def casts_in(file: onnx.ModelProto) -> int:
    """To bfloat16."""
    nodes = file.graph.node
    kinds = Counter(a.i for node in nodes if node.op_type == "Cast" for a in node.attribute if a.name == "to")
    assert kinds[onnx.TensorProto.BFLOAT16] <= kinds[onnx.TensorProto.FLOAT]
    return kinds[onnx.TensorProto.BFLOAT16]


def bfloats(artifact: Artifact) -> list[str]:
    document = json.loads((artifact.folder / "plan.json").read_text())
    return [entry["site"] for entry in document["activations"] if entry["format"] == "bfloat16"]


def resolved(artifact: Artifact, folder: Path, **options: Any) -> Artifact:
    with quick():
        return ptqc.resolve(
            artifact.folder, output=folder / "again", cache=artifact.folder.parent / "cache", budget="30%", **options
        )


@pytest.mark.long
def test_what_is_rounded_is_in_the_file_and_in_its_documents(rounded: Artifact) -> None:
    assert bfloats(rounded) == ["ar", "br"]  # three channels of the input are no pairs
    assert casts(rounded) == 2
    assert 0 < rounded.manifest["activation_loss"] < 1e-3
    messages = [note["subject"] for note in rounded.manifest["notes"] if "rounded to bfloat16" in note["message"]]
    assert messages == ["ar", "br"]
    page = (rounded.folder / "report.html").read_text()
    assert "0 of 6 activations are quantized to 8 bits and 2 rounded to bfloat16" in page


@pytest.mark.long
def test_resolve_keeps_what_was_asked_for(rounded: Artifact, tmp_path: Path) -> None:
    again = resolved(rounded, tmp_path)
    assert again.path.read_bytes() == rounded.path.read_bytes()
    assert again.manifest["options"] == rounded.manifest["options"]
    other = resolved(rounded, tmp_path, float_layers="float32", force=True)
    assert (casts(other), bfloats(other), other.manifest["activation_loss"]) == (0, [], 0.0)


def test_a_given_plan_is_followed_whatever_is_asked_for(rounded: Artifact, tmp_path: Path) -> None:
    plan = json.loads((rounded.folder / "plan.json").read_text())
    plan["activations"] = plan["activations"][:1]
    result = resolved(rounded, tmp_path, plan=plan, float_layers="float32")
    assert (bfloats(result), casts(result)) == (["ar"], 1)
    assert 0 < result.manifest["activation_loss"] < rounded.manifest["activation_loss"]


@pytest.mark.slow
def test_weights_without_codes_leave_nothing_to_gain(tmp_path: Path) -> None:
    """Without a budget all weights stay real."""
    made = compiled(
        residual(), samples(3, 8, 8), tmp_path, None, bits=(4,), activations="float", float_layers="bfloat16"
    )
    assert set(made.manifest["weights_by_format"]) <= {"float16", "float32"}
    assert (casts(made), bfloats(made), made.manifest["activation_loss"]) == (0, [], 0.0)


@pytest.mark.parametrize(("target", "latency", "present"), list(product((None, "cpu"), (None, "2ms"), (True, False))))
@pytest.mark.parametrize("cpu", ["avx2", "avx2,avx512-bf16"])
def test_auto_is_bfloat16_where_a_library_gains(
    target: Any, latency: str | None, present: bool, cpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ptqc.codegen.cpu.target.is_present", lambda: present)

    def found(asked: str) -> bool:
        options = CompileOptions.of({"float_layers": asked})
        job = SimpleNamespace(options=options, timed=latency)
        return _in_bfloat16(cast(CompileState, job), choose(target, {"cpu": cpu} if target else {}))

    gains = target == "cpu" and latency is None and present and "bf16" in cpu
    assert (found("auto"), found("bfloat16"), found("float32")) == (gains, True, False)


def test_a_sweep_rounds_as_the_artifact_does(rounded: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    files = list[onnx.ModelProto]()

    def times(_decided: object, values: Sequence[onnx.ModelProto]) -> list[float]:
        files.extend(values)
        return [1.0] * (1 + len(values))

    monkeypatch.setattr(sweep, "_times", times)
    result = ptqc.sweep(rounded.folder, budgets=["30%"], cache=rounded.folder.parent / "cache")
    assert [casts_in(file) for file in files] == [2]
    assert result.document["points"][0]["predicted"] > rounded.manifest["activation_loss"]
