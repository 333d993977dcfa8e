"""Latencies of native libraries: what is timed is what the latency model counts, and a budget is kept and told."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from compiling import Measured, compiled, kept_budgets, proto, quick, samples, weight

import ptqc
from ptqc.artifact.folder import Artifact
from ptqc.codegen.cpu import isa, tuning, worker
from ptqc.codegen.cpu.backend import CpuBackend
from ptqc.codegen.cpu.jobs import Choices
from ptqc.codegen.cpu.options import CpuOptions
from ptqc.codegen.cpu.table import Request, TunedKernel
from ptqc.codegen.cpu.target import CpuTarget
from ptqc.codegen.cpu.timer import CpuTimer
from ptqc.codegen.kernels import lowering
from ptqc.codegen.kernels.jobs import program_job
from ptqc.codegen.kernels.process import JOB
from ptqc.codegen.program.batching import Seen, along_the_batch
from ptqc.codegen.program.listing import Listing
from ptqc.codegen.program.timing import TimedCall, TimedProgram
from ptqc.codegen.targets import TargetOutput
from ptqc.errors import Infeasible, Missed, TargetError, UsageError
from ptqc.execution.speed import Profile
from ptqc.ir.sites import useful_sites
from ptqc.passes.allocate.constraints.clocks import LibraryMeter, LoweredPlan, any_plan, charges, network_of
from ptqc.passes.allocate.cost_model import OpLatencies
from ptqc.passes.allocate.problem import packed, table_parameters

LAYERS = "g (float[N,4,8,8] x) => (float[N,4,8,8] y) { a = Conv(x, w, b) r = Relu(a) y = Conv(r, w, b) }"
FOREIGN = "arm-neon" if isa.machine() == "x86_64" else "avx2"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("latency")


@pytest.mark.parametrize("seed", range(6))
def test_conversions_of_a_library_are_the_predicted_ones(measured: Measured, seed: int) -> None:
    context, rng = measured.context, np.random.default_rng(seed)
    some = [site for site in context.sites if rng.random() < 0.7]
    kept = useful_sites(some, context.kernels, {layer.name for layer in context.layers})
    plan = any_plan(context, measured.options, {site.name: context.ranges[site.name] for site in kept})
    graph = LoweredPlan(plan, *packed(context, plan, table_parameters(context, plan.formats)))
    network, feeds = network_of(context), measured.feeds[0]
    batching = along_the_batch(graph.lowered.model, feeds)
    assert batching is not None
    seen = Seen.of(graph.lowered.model, feeds, {})
    listing = Listing.of(lowering.program(graph.lowered, seen, CpuBackend(isa.AVX2), batching))
    calls = tuple(TimedCall(call.inputs, call.output, call.value, 1.0) for call in listing.calls)
    operators = {operator.node for operator in network.operators}
    result = charges(TimedProgram(len(calls), calls), graph, operators, context.macs)
    assert sum(result.values()) == len(calls)
    ones = {edge.tensor: 1.0 for edge in network.edges}
    counting = {"quantize": OpLatencies("", {}, {}, ones, {}), "dequantize": OpLatencies("", {}, {}, {}, ones)}
    assert set(result) - operators == {
        (what, tensor)
        for what, times in counting.items()
        for tensor, ns in network.conversion_times(times, plan.params).items()
        if ns
    }
    assert {layer.name for layer in context.layers} <= set(result)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["quick", None])
def test_libraries_are_timed_as_they_are_tuned(
    measured: Measured, level: Literal["quick"] | None, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what is measured, or by a table, which may name kernels of other plans alone."""
    context, chosen = measured.context, isa.named("portable")
    plan = any_plan(context, measured.options, context.ranges)
    lowered, _ = packed(context, plan, table_parameters(context, plan.formats))
    batching = along_the_batch(lowered.model, measured.feeds[0])
    assert batching is not None
    program = lowering.program(lowered, Seen.of(lowered.model, measured.feeds[0], {}), CpuBackend(chosen), batching)
    name, ways = next((name, ways) for name, (_, ways) in tuning.tunable(program).items() if len(ways.cuts) > 1)
    table = {name: TunedKernel(ways.cuts[1], 0.5), "of another plan": TunedKernel(ways.cuts[0], 1.0)}
    monkeypatch.setattr(tuning, "measure", lambda *_given: table)
    request = Request(level, {} if level else {chosen.name: table})
    job = program_job(tmp_path, lowered, measured.feeds[:1], Choices(batching, chosen.name, place / "store", request))
    (tmp_path / JOB).write_text(json.dumps(job))
    kernels = {call.kernel for call in worker._timed_library(tmp_path).listing.calls}
    assert name not in kernels
    assert ways.write(ways.cuts[1]).name in kernels


def compile_(folder: Path, output: Path, budget: str, **options: Any) -> Artifact:
    """Float activations unless a latency asks for more."""
    settings: dict[str, Any] = {
        "activation_limit": 1e-9,
        "bits": (4,),
        "samples": 16,
        "cache": folder / "cache",
        "output": output,
        "target": "cpu",
    }
    model = proto(LAYERS, w=weight(4, 4, 1, 1), b=weight(4))
    return compiled(model, samples(4, 8, 8), folder, budget, **(settings | options))


@pytest.fixture(scope="module")
def loose(place: Path) -> Artifact:
    """A latency that any choice keeps, measured in the library."""
    return compile_(place, place / "loose", "50ms@cpu")


@pytest.mark.long
def test_the_library_is_timed_and_told(loose: Artifact) -> None:
    record = loose.manifest["latency"]
    assert kept_budgets(loose) == {"latency": True}
    assert record["budget"] == "50 ms@cpu"
    assert record["runtime"].startswith("the native library for ")
    assert 0 < record["measured_ms"] < 50
    assert 0 < record["float_ms"] < 50
    measured = sum(o["measured_us"] for o in record["operators"]) + record["conversions"]["measured_us"]
    assert measured == pytest.approx(1000 * record["measured_ms"])
    times = OpLatencies.from_json(record["times"])
    assert times.target == "cpu"
    assert times.floats.keys() == times.integers.keys() == {"a", "y"}
    assert times.quantize.keys() == times.dequantize.keys() == {"x", "r", "y"}
    assert "of the budget of 50 ms@cpu" in " ".join(loose.summary().split())
    assert "the native library for" in (loose.folder / "report.html").read_text()


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Libraries that take so many nanoseconds, and times that are recorded: nothing here depends on the machine."""

    def never(*_given: object) -> None:
        raise AssertionError("measured again")

    def take(nanoseconds: float) -> None:
        result = Profile(nanoseconds, {}, {}, False)
        monkeypatch.setattr(LibraryMeter, "profiles", lambda *_given: (result, result))

    built = TargetOutput({}, {"missing": "left out"})
    monkeypatch.setattr(CpuTarget, "build", lambda *_given: built)
    monkeypatch.setattr(LibraryMeter, "measure", never)
    monkeypatch.setattr(LibraryMeter, "latencies", never)
    return take


def resolve(artifact: Artifact, output: Path, budget: str, **options: Any) -> Artifact:
    with quick():
        return ptqc.resolve(
            artifact.folder, output=output, budget=budget, cache=artifact.folder.parent / "cache", **options
        )


def integers(artifact: Artifact) -> list[str]:
    """The layers on integer kernels."""
    result = [entry["layers"] for entry in artifact.plan["weights"]]
    return [layer for layers in result for layer, compute in layers.items() if compute == "integer"]


def test_recorded_times_serve_a_tighter_latency(
    loose: Artifact, tmp_path: Path, given: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choice is that of the recorded times, whatever the machine does now; a miss is told, and counts if strict."""
    times = OpLatencies.from_json(loose.manifest["latency"]["times"])
    floats, codes = dict.fromkeys(times.floats, 4e6), dict.fromkeys(times.integers, 1e6)
    fast = OpLatencies("a library", floats, codes, {}, {}, target="cpu")
    monkeypatch.setattr("ptqc.api.fitting_times", lambda *_given: fast)
    given(5e6)
    result = resolve(loose, tmp_path / "out", "6ms@cpu", target="cpu")
    assert integers(loose) == []
    assert len(integers(result)) == 1
    assert result.manifest["latency"]["predicted_ms"] <= 6
    assert kept_budgets(result) == {"latency": True}
    given(7e6)
    with pytest.raises(Missed, match=r"one run of the library took 7 ms, over the budget of 6 ms@cpu"):
        resolve(loose, tmp_path / "strict", "6ms@cpu", target="cpu", strict=True)
    with pytest.raises(Infeasible, match=r"budget of 1 ms@cpu cannot be met .* in a library"):
        resolve(loose, tmp_path / "strict", "1ms@cpu", target="cpu")


@pytest.mark.slow
def test_recorded_times_give_the_same_bytes(loose: Artifact, tmp_path: Path, given: Callable[[float], None]) -> None:
    given(1e6)
    again = compile_(loose.folder.parent, tmp_path / "again", "50ms@cpu", times=loose.folder)
    result = resolve(loose, tmp_path / "resolved", "50ms@cpu", target="cpu")
    first, *others = (
        [(artifact.folder / name).read_bytes() for name in ("model.onnx", "plan.json", "sensitivity.json")]
        for artifact in (loose, again, result)
    )
    assert others == [first, first]


def test_times_of_another_runtime_are_refused(loose: Artifact, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"are of the native library for .*, and the budget 50 ms is of another"):
        compile_(loose.folder.parent, tmp_path / "out", "50ms", times=loose.folder)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"target": None}, r"budget 2 ms@cpu is of the library that the target cpu builds, which is not asked for"),
        ({"allow_missing_target": True}, r"needs the library of the target cpu, which --allow-missing-target allows"),
        ({"cpu": FOREIGN}, r"a latency of the library is measured on this machine, but .*is for"),
    ],
)
def test_what_cannot_be_timed_is_refused_before_any_work(
    tmp_path: Path, options: dict[str, Any], expected: str
) -> None:
    with pytest.raises((UsageError, TargetError), match=expected):
        compile_(tmp_path, tmp_path / "out", "2ms@cpu", **options)
    assert not (tmp_path / "cache").exists()


def test_one_of_several_libraries_is_timed_that_runs_here() -> None:
    assert CpuTimer.of(CpuOptions(cpu=f"portable,{FOREIGN}")).isa == isa.named("portable").name
