"""A latency budget with times that are given: nothing here depends on how fast the machine is."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from compiling import compiled, kept_budgets, measure_residual, quick, residual, samples

import ptqc
from ptqc.artifact.folder import Artifact
from ptqc.budget import parse_budgets
from ptqc.cli.main import main
from ptqc.errors import Infeasible, Missed, UsageError
from ptqc.execution import speed
from ptqc.execution.speed import Profile
from ptqc.notes import Note
from ptqc.options import CompileOptions
from ptqc.passes.allocate.constraints import clocks, latency
from ptqc.passes.allocate.constraints.latency import LatencyBudget, _over_budget
from ptqc.passes.allocate.cost_model import Network, OpLatencies, Timed, TimedOperator
from ptqc.passes.allocate.state import BudgetReport, Budgets, CompileState, Context
from ptqc.utils.deadline import NEVER
from ptqc.utils.parallel import processors
from ptqc.utils.progress import SILENT
from ptqc.utils.store import Store

LAYERS = ("a", "b", "c", "y")
TENSORS = ("x", "ar", "br", "cr", "p", "f", "y")
# All in float: 4.4 ms; the layers on integers, 1.2 ms.
TIMES = OpLatencies(
    "a runtime",
    {**dict.fromkeys(LAYERS, 1e6), "cs": 2e5, "p": 2e5},
    {**dict.fromkeys(LAYERS, 2.5e5), "cs": 1e5, "p": 1e5},
    dict.fromkeys(TENSORS, 5e4),
    dict.fromkeys(TENSORS, 5e4),
)


def as_predicted(_job: CompileState, _clock: Any, analysis: Any, timed: Any) -> tuple[float, float]:
    """A file that takes as long as predicted."""
    return (timed.network.predict(timed.times, analysis.tensors_of(analysis.activations)),) * 2


BUDGET = LatencyBudget(3e6)


def context(times: OpLatencies | None = None) -> Context:
    return Context(SILENT, NEVER, cast(Store, None), times=times)


def never(*_given: object) -> None:
    raise AssertionError("measured again")


@pytest.fixture(scope="module", autouse=True)
def injected() -> Iterator[None]:
    """Times of operators as above, files that take as long as predicted, and short runs."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(clocks, "measure_times", lambda *_given: TIMES)
        patched.setattr(latency, "_trial", as_predicted)
        patched.setattr(speed, "PROFILE_ROUNDS", (1, 1))
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("latency")


@pytest.fixture(scope="module")
def tight(place: Path) -> Artifact:
    """A size and a latency that half of the layers reach in float."""
    return compile_(place, place / "tight", ("3ms", "30%"))


def compile_(place: Path, output: Path, budget: Any, **options: Any) -> Artifact:
    """Float activations unless a latency asks for more."""
    settings: dict[str, Any] = {
        "activation_limit": 1e-9,
        "bits": (4,),
        "samples": 16,
        "cache": place / "cache",
        "output": output,
    } | options
    return compiled(residual(), samples(3, 8, 8), place, budget, **settings)


def reproducible(artifact: Artifact) -> list[bytes]:
    return [(artifact.folder / name).read_bytes() for name in ("model.onnx", "plan.json", "sensitivity.json")]


def integers(artifact: Artifact) -> list[str]:
    """The layers on integer kernels."""
    result = [entry["layers"] for entry in artifact.plan["weights"]]
    return [layer for layers in result for layer, compute in layers.items() if compute == "integer"]


def resolve(artifact: Artifact, output: Path, budget: str | Sequence[str] | None, **options: Any) -> Artifact:
    with quick():
        return ptqc.resolve(
            artifact.folder, output=output, budget=budget, cache=artifact.folder.parent / "cache", **options
        )


def test_the_latency_and_the_size_are_kept(tight: Artifact) -> None:
    record = tight.manifest["latency"]
    assert (record["budget"], record["runtime"]) == ("3 ms", "a runtime")
    assert record["predicted_ms"] <= 3
    assert 1 <= len(integers(tight)) < len(LAYERS)
    assert tight.manifest["activation_loss"] > 1e-9
    assert tight.path.stat().st_size <= 0.3 * tight.manifest["source"]["bytes"]


def test_documents_tell_the_times(tight: Artifact) -> None:
    record = tight.manifest["latency"]
    assert {o["node"] for o in record["operators"]} == {*LAYERS, "cs", "p", "f"}
    assert sum(o["predicted_us"] for o in record["operators"]) + record["conversions"]["predicted_us"] == pytest.approx(
        1000 * record["predicted_ms"]
    )
    assert "of the budget of 3 ms" in " ".join(tight.summary().split())
    together = tight.manifest["allocation"]["with_activations"]
    assert together["status"] == "optimal"
    assert set(together["prices_of_one_percent"]) == {"time", "size"}
    assert "weights and activations: predicted divergence" in " ".join(tight.summary().split())
    assert "weights and activations together" in (tight.folder / "report.html").read_text()
    assert "Latency" in (tight.folder / "report.html").read_text()


def test_less_time_puts_more_layers_on_integers(tight: Artifact, tmp_path: Path) -> None:
    loose, faster = resolve(tight, tmp_path / "loose", "5ms"), resolve(tight, tmp_path / "faster", "1.5ms")
    assert integers(loose) == []
    assert set(integers(tight)) < set(integers(faster)) == set(LAYERS)


def test_recorded_times_give_the_same_bytes(
    place: Path, tight: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clocks, "measure_times", never)
    monkeypatch.setattr(latency, "_trial", never)
    again = compile_(place, tmp_path / "again", ("3ms", "30%"), times=tight.folder)
    resolved = resolve(tight, tmp_path / "resolved", ["30%", "3ms"])
    assert reproducible(tight) == reproducible(again) == reproducible(resolved)


@pytest.mark.long
def test_a_latency_that_is_missed_counts_where_asked_for(
    tight: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kept_budgets(tight) == {"size": True, "latency": True}
    monkeypatch.setattr(clocks, "profile", lambda subjects, _seconds: [Profile(4e6, {}, {}, False) for _ in subjects])
    result = resolve(tight, tmp_path / "missed", ["30%", "3ms"])
    assert kept_budgets(result) == {"size": True, "latency": False}
    assert not all(kept_budgets(result).values())
    with pytest.raises(Missed, match=r"took 4 ms, over the budget of 3 ms.*without strict the file is deli") as missed:
        resolve(tight, tmp_path / "strict", ["30%", "3ms"], strict=True)
    assert (missed.value.limit, missed.value.value, missed.value.unit) == (3.0, 4.0, "ms")
    cache = str(tight.folder.parent / "cache")
    words = ["resolve", str(tight.folder), "-o", str(tmp_path / "strict"), "--budget", "3ms", "--cache", cache]
    assert main([*words, "--strict", "-q", "--json"]) == Missed.exit_code == 2
    printed = capsys.readouterr()
    assert "over the budget of 3 ms" in printed.err
    figures = {"budget": "3 ms", "limit": 3.0, "value": 4.0, "unit": "ms"}
    assert json.loads(printed.out)["error"].items() >= {"kind": "Missed", **figures}.items()
    assert not (tmp_path / "strict").exists()


def test_what_cannot_be_reached_is_refused(place: Path, tmp_path: Path) -> None:
    with pytest.raises(Infeasible, match=r"budget of 0\.5 ms cannot be met .* is 1\.\d+ ms in a runtime") as refusal:
        compile_(place, tmp_path / "out", "500us")
    assert refusal.value.unit == "ns"
    assert 1_000_000 < refusal.value.smallest < 2_000_000
    blockers = refusal.value.figures["blockers"]
    assert [(one["name"], one["amount"]) for one in blockers] == list(refusal.value.blockers)


@pytest.mark.parametrize(
    ("load", "advice"),
    [
        (0.0, r"ms\. Run it again where nothing else runs, or allow more time$"),
        (
            1e3,
            r"ms\. When operators were timed, the machine was busy, a load of 1000\.0 on \d+ processors: run it again",
        ),
    ],
)
def test_a_latency_too_short_says_whether_the_machine_was_busy(
    job: CompileState, monkeypatch: pytest.MonkeyPatch, load: float, advice: str
) -> None:
    monkeypatch.setattr(latency, "load_average", lambda: load)
    with pytest.raises(Infeasible, match=advice):
        LatencyBudget(5e5).decide(job, context())
    with pytest.raises(Infeasible, match=r"Slowest: .* ms$"):
        LatencyBudget(5e5).decide(job, context(TIMES))


@pytest.mark.slow
def test_a_loss_beside_the_latency_is_kept_too(place: Path, tmp_path: Path) -> None:
    result = compile_(place, tmp_path / "out", ("3ms", "0.1nat"), samples=32)
    assert kept_budgets(result)["loss"]
    assert result.manifest["latency"]["predicted_ms"] <= 3
    assert integers(result)


@pytest.mark.slow
def test_a_size_and_a_latency_that_contradict_each_other_say_what_each_needs(place: Path, tmp_path: Path) -> None:
    """Codes ask for more nodes than float does: the smallest file of all is not among the fastest."""
    with pytest.raises(Infeasible) as alone:
        compile_(place, tmp_path / "size", 1000, activations="float")
    smallest = compile_(place, tmp_path / "float", alone.value.smallest, activations="float").path.stat().st_size
    assert compile_(place, tmp_path / "fast", "1.3ms").manifest["latency"]["predicted_ms"] <= 1.3
    with pytest.raises(Infeasible, match=r"contradict each other: within 1\.3 ms about [\d,]+ bytes are the fewest"):
        compile_(place, tmp_path / "both", ("1.3ms", smallest - 100))  # that few as the solver counts them


def test_a_plan_is_held_to_the_latency(tight: Artifact, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"given plan is predicted to take [23](\.\d+)? ms, over the budget of 2 ms"):
        resolve(tight, tmp_path / "out", "2ms", plan=tight.plan)


def test_times_of_another_model_are_refused() -> None:
    other = replace(TIMES, floats={**TIMES.floats, "other": 1.0})
    with pytest.raises(UsageError, match="no operator that makes 'other'"):
        latency._check_of_this(other, _network(TIMES))


def _network(known: OpLatencies) -> Network:
    return Network(tuple(TimedOperator(node, "Conv", ()) for node in known.floats), ())


class Trials:
    """Files that take longer than predicted by a factor."""

    def __init__(self, factor: float, before: Any) -> None:
        self.factor, self.before, self.count = factor, before, 0

    def __call__(self, *arguments: Any) -> tuple[float, float]:
        self.count += 1
        predicted, _ = self.before(*arguments)
        return predicted, self.factor * predicted


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> CompileState:
    """Measurements in which all activations are float, and a latency that this does not reach."""
    options = {"activation_limit": 1e-9, "bits": (4,), "samples": 16, "activations": "auto"}
    measured = measure_residual(tmp_path_factory.mktemp("job"), **options)
    return CompileState(measured.prepared, measured.context, measured.options, (), "", Budgets((BUDGET,)), 0.0)


def test_times_are_corrected_by_what_the_file_takes(job: CompileState, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = Trials(1.4, latency._trial)
    monkeypatch.setattr(latency, "_trial", trials)
    corrected = BUDGET.decide(job, context())
    analysis, result = corrected.analysis, corrected.timed
    assert result is not None
    assert result.times.floats["a"] == pytest.approx(1.4e6)
    assert 1 <= trials.count <= latency.CORRECTIONS
    assert result.network.predict(result.times, analysis.tensors_of(analysis.activations)) <= 3e6


def test_corrections_that_allow_nothing_keep_the_choice(job: CompileState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "load_average", lambda: 0.5)
    uncorrected = BUDGET.decide(job, context())
    monkeypatch.setattr(latency, "_trial", Trials(9.0, latency._trial))
    kept = BUDGET.decide(job, context())
    assert kept.timed == uncorrected.timed
    assert kept.analysis.activations == uncorrected.analysis.activations != {}


def test_without_a_latency_nothing_is_timed(job: CompileState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "measure_times", never)
    for constraint in parse_budgets("13%"):
        assert constraint.decide(job, context()) is job


def test_a_file_over_the_budget_is_told() -> None:
    (note,) = _over(2.5e6)
    assert note.level == "warning"
    advice = "run it again where nothing else runs, or allow more time"
    assert note.message == f"one run took 2.5 ms, over the budget of 2 ms: {advice}"
    assert _over(1.9e6) == ()
    load = processors() + 0.5
    (busy,) = _over(2.5e6, load=load)
    machine = f"the machine was busy, a load of {load:.1f} on {processors()} processors"
    assert busy.message == f"one run took 2.5 ms, over the budget of 2 ms; {machine}: {advice}"


def test_a_prediction_over_the_budget_is_told_as_one() -> None:
    (note,) = _over(2.5e6, replace(TIMES, is_measured=False), load=1e3)
    assert note.message == "one run is predicted to take 2.5 ms, over the budget of 2 ms: allow more time"


def _over(nanoseconds: float, known: OpLatencies = TIMES, load: float = 0.0) -> tuple[Note, ...]:
    return _over_budget(LatencyBudget(2e6), known, Profile(nanoseconds, {}, {}, False), load)


@pytest.mark.parametrize(("budget", "result"), [("2ms", TIMES), ("2ms@cpu", None), ("13%", None)])
def test_recorded_times_serve_budgets_of_the_same_runtime(budget: str, result: OpLatencies | None) -> None:
    manifest = {"latency": {"times": TIMES.to_json()}}
    asked = parse_budgets(budget).get(LatencyBudget)
    assert latency.fitting_times(manifest, asked, CompileOptions()) == result
    assert latency.fitting_times(manifest, asked, CompileOptions(operators="onnxruntime")) is None
    assert latency.fitting_times({"latency": None}, asked, CompileOptions()) is None
    predicted = {"latency": {"times": replace(TIMES, is_measured=False).to_json()}}
    assert latency.fitting_times(predicted, asked, CompileOptions()) is None


@pytest.mark.parametrize("operators", ["onnxruntime", "dequantize"])
def test_times_of_other_operators_are_refused(operators: str, tight: Artifact, place: Path) -> None:
    with pytest.raises(UsageError, match=f"with unpacked weights, and operators is '{operators}'"):
        compile_(place, place / "own", "3ms", times=tight.folder, operators=operators)


# Of a file that took half as long again as predicted.
SLOWER = BudgetReport({"predicted_ms": 2.0, "measured_ms": 3.0}, (Note("latency", "", "over the budget"),))


@pytest.mark.long
def test_a_file_that_takes_longer_than_predicted_is_chosen_again(tmp_path: Path) -> None:
    result = measure_residual(tmp_path, activations="auto")
    everything = replace(result.context, activations=dict(result.context.ranges))
    some = {name: params for name, params in result.context.ranges.items() if name in ("x", "ar")}
    network = clocks.network_of(everything)
    timed = Timed(BUDGET.nanoseconds, network, TIMES)
    few = replace(result.context, activations=some)
    job = CompileState(result.prepared, few, result.options, (), "", Budgets((BUDGET,)), 0.0, timed)
    again = BUDGET.revise(job, SLOWER, context())
    assert again is not None
    assert again.timed is not None
    quantized = again.analysis.tensors_of(again.analysis.activations)
    assert network.predict(again.timed.times, quantized) <= BUDGET.nanoseconds
    assert again.timed.times.floats["a"] == pytest.approx(1.5 * TIMES.floats["a"])
    assert "took 3 ms" in again.notes[-1].message
    assert BUDGET.revise(job, replace(SLOWER, notes=()), context()) is None
    assert BUDGET.revise(job, SLOWER, context(TIMES)) is None
