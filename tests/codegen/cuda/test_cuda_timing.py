"""Latencies of CUDA libraries are predicted: a budget is kept by them, and told as predicted."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm.tirx", reason="the cuda target needs Apache TVM")

from compiling import compiled, kept_budgets, proto, quick, samples, weight
from test_times_table import A100

import ptqc
from ptqc.artifact.folder import Artifact
from ptqc.codegen.cuda import timer
from ptqc.codegen.cuda.target import CudaTarget
from ptqc.codegen.kernels.jobs import timed
from ptqc.codegen.targets import TargetOutput
from ptqc.errors import Infeasible, TargetError, UsageError
from ptqc.runtime import cuda

LAYERS = """g (float[N, 64, 16, 16] x) => (float[N, 64, 16, 16] y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, w, b)
    r = Relu(a)
    y = Conv <pads = [1, 1, 1, 1]> (r, w, b)
}"""


@pytest.fixture(scope="module", autouse=True)
def no_library() -> Any:
    """Times are predicted of kernels that are written; that a library comes of them is tested elsewhere."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(CudaTarget, "build", lambda *_given: TargetOutput({}, {"missing": "left out"}))
        patched.setattr(CudaTarget, "check_present", lambda *_given: None)
        yield


@pytest.fixture(scope="module")
def loose(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Float activations, with a latency that any choice keeps."""
    folder = tmp_path_factory.mktemp("latency")
    settings = {"activation_limit": 1e-9, "bits": (4,), "samples": 16, "cache": folder / "cache", "target": "cuda"}
    model = proto(LAYERS, w=weight(64, 64, 3, 3), b=weight(64))
    return compiled(model, samples(64, 16, 16), folder, "50ms@cuda", output=folder / "loose", **settings)


def resolve(artifact: Artifact, output: Path, budget: str, **options: Any) -> Artifact:
    values = {"output": output, "cache": artifact.folder.parent / "cache", "target": "cuda", **options}
    with quick():
        return ptqc.resolve(artifact.folder, budget=budget, **values)


def test_a_latency_is_told_as_predicted(loose: Artifact) -> None:
    record = loose.manifest["latency"]
    assert kept_budgets(loose) == {"latency": True}
    assert record["runtime"] == (
        "the CUDA library on A100 40 GB (sm_80), RTX 3090 (sm_86), L4 (sm_89), H100 SXM (sm_90a), the slowest of them"
    )
    assert record["measured_ms"] is record["conversions"]["measured_us"] is None
    assert all(entry["measured_us"] is None for entry in record["operators"])
    predicted = sum(o["predicted_us"] for o in record["operators"]) + record["conversions"]["predicted_us"]
    assert predicted == pytest.approx(1000 * record["predicted_ms"])
    assert "not measured, of the budget of 50 ms@cuda" in " ".join(loose.summary().split())
    assert "predicted from the figures of chips" in (loose.folder / "report.html").read_text()


def test_a_gpu_is_looked_for_once(loose: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of the request, the choice of activations and the report ask the same timer."""
    searches = []

    def none() -> None:
        searches.append("here")
        raise TargetError("there is no GPU")

    monkeypatch.setattr(cuda, "find", none)
    resolve(loose, tmp_path / "searched", "50ms@cuda")
    assert searches == ["here"]


@pytest.mark.slow
def test_a_latency_is_told_as_measured_where_there_is_a_gpu(
    loose: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Predicted times stand in for those of a GPU."""

    def predicted(graphs: Any, samples: Any, choices: Any, *arguments: Any, **more: Any) -> Any:
        return timed(graphs, samples, lambda batching: replace(choices(batching), device=None), *arguments, **more)

    monkeypatch.setattr(cuda, "find", lambda: A100)
    monkeypatch.setattr(timer, "timed", predicted)
    result = resolve(loose, tmp_path / "measured", "50ms@cuda", gpu="sm_80")
    record = result.manifest["latency"]
    assert record["runtime"] == "the CUDA library on A100 (sm_80, driver 580.65)"
    assert record["measured_ms"] > 0
    assert record["times"]["is_measured"]
    assert "not measured" not in " ".join(result.summary().split())


@pytest.mark.slow
def test_a_tighter_latency_is_met_and_one_beyond_all_choices_refused(loose: Artifact, tmp_path: Path) -> None:
    result = loose.manifest["latency"]
    on_codes = sum(o["integer_us"] for o in result["operators"]) / 1000
    assert on_codes < result["predicted_ms"]
    tight = resolve(loose, tmp_path / "tight", f"{1000 * result['predicted_ms'] - 1}us@cuda", gpu="sm_89,sm_80")
    runtime = "the CUDA library on A100 40 GB (sm_80), L4 (sm_89), the slowest of them"
    assert tight.manifest["latency"]["runtime"] == runtime
    computed = {how for entry in tight.plan["weights"] for how in entry["layers"].values()}
    assert "integer" in computed
    assert kept_budgets(tight)["latency"]
    with pytest.raises(Infeasible, match=r"0\.001 ms@cuda cannot be met: the shortest .* in the CUDA library on"):
        resolve(loose, tmp_path / "none", "1us@cuda")


def test_predicted_times_are_not_given_on(loose: Artifact, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="recorded were predicted, and would be predicted again: leave out --times"):
        ptqc.compile(
            loose.path,
            calibration="synthetic",
            output=tmp_path / "out",
            budget="1ms@cuda",
            target="cuda",
            times=loose.folder,
        )
