"""How well predictions of a plan's loss rank plans, and what is lost by choosing with each of them.

python benchmarks/ranking.py [--tasks a,b] [--budgets 13%] [--plans 40] [--samples 256] [--out results.json]

Plans of one budget are drawn by disturbing the losses that the integer program sees. Each is packed with the table's
weights and exact biases, and run on calibration samples that no measurement has seen; tasks without such are left out.
"""

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import ablation
import harness
import numpy as np
from ablation import Bench
from harness import Column, Feeds, Run, number, significant
from tasks import chosen

from ptqc.formats import Format
from ptqc.ir.plan import Plan
from ptqc.ir.quantized_weight import QuantizedParameters
from ptqc.losses import OutputLoss, Outputs
from ptqc.passes.allocate import problem
from ptqc.passes.quantize.calibrate import Calibrate
from ptqc.passes.quantize.measure_curvature import MeasureCurvature
from ptqc.passes.quantize.measure_sensitivity import MeasureSensitivity, mean_shift
from ptqc.passes.quantize.phases import Analysis, AnalysisInput, WeightCandidates

Losses = Mapping[tuple[str, Format], float]
Phase = TypeVar("Phase", bound=AnalysisInput)

FEWEST_FRESH, MOST_FRESH = 64, 1000
# Deviation of the logarithm of the losses that plans are drawn with.
DISTURBANCE = 1.0
COLUMNS = (
    Column("task", "task"),
    Column("budget", "budget"),
    Column("predicted by", "criterion"),
    Column("plans", "plans"),
    Column("rank correlation", "correlation", number(2)),
    Column("loss of the plan it picks", "picked", significant(3)),
    Column("the same reconstructed", "reconstructed", significant(3)),
    Column("median loss of the plans", "median", significant(3)),
    Column("unit", "loss_unit"),
    Column("note", "note"),
)


def criteria(bench: Bench) -> Iterator[tuple[str, Losses]]:
    """The name of every prediction, and the losses that it gives the candidates."""
    yield "local error", bench.analysis.errors
    yield "curvature", curvature(bench)
    yield "outputs", bench.analysis.weight_losses
    yield "outputs, squared error", squared(bench)


def at(phase: type[Phase], analysis: Analysis) -> Phase:
    """What was known after an earlier pass."""
    return phase(**{each.name: getattr(analysis, each.name) for each in fields(phase)})


def with_observed(bench: Bench) -> Bench:
    """With what calibration observes and the store does not keep: moments of what layers multiply, and other ranges."""
    stats = Calibrate().apply(at(AnalysisInput, bench.analysis)).output
    observed = {name: getattr(stats, name) for name in ("moments", "held_moments", "other_ranges")}
    return replace(bench, analysis=replace(bench.analysis, **observed))


def squared(bench: Bench) -> Losses:
    """What the table of losses is by the squared error of the outputs."""
    return MeasureSensitivity("mse").apply(at(WeightCandidates, bench.analysis)).output.weight_losses


def curvature(bench: Bench) -> Losses:
    """What the table of losses is by gradients."""
    return MeasureCurvature().apply(at(WeightCandidates, bench.analysis)).output.weight_losses


def drawn_plans(bench: Bench, several: Sequence[Losses], limit: int, count: int) -> list[Plan]:
    """Plans of the integer program with losses that are disturbed at random, of every prediction in turn."""
    random = np.random.default_rng(0)
    turns = (several[i % len(several)] for i in range(count))
    disturbed = ({key: loss * random.lognormal(0, DISTURBANCE) for key, loss in losses.items()} for losses in turns)
    return [best(bench, drawn, limit) for drawn in disturbed]


def best(bench: Bench, losses: Losses, limit: int) -> Plan:
    """The plan with the least sum of these losses."""
    candidates = tuple(replace(one, loss=losses[one.weight, one.form]) for one in bench.problem.candidates)
    return ablation.best(bench, limit, replace(bench.problem, candidates=candidates))


def packed(bench: Bench, plan: Plan) -> bytes:
    """A plan's file with the table's weights, and biases that make the mean of every channel exact."""
    numbers = problem.table_parameters(bench.analysis, plan.formats)
    biases = dict(numbers.biases)
    for layer in bench.analysis.layers:
        if (bias := biases[layer.name]) is not None:
            original = np.zeros_like(bias) if layer.bias is None else bias
            shift = mean_shift(bench.analysis, layer, numbers.weights[layer.weight].weight)
            biases[layer.name] = original + shift
    return problem.packed(bench.analysis, plan, QuantizedParameters(numbers.weights, biases))[1].data


def true_loss(loss: OutputLoss, real: Sequence[Outputs], run: Run, samples: Sequence[Feeds]) -> float:
    """Mean loss of a file's outputs."""
    outputs = (dict(zip(wanted, run(feeds), strict=True)) for wanted, feeds in zip(real, samples, strict=True))
    return float(np.mean([loss(wanted, tested) for wanted, tested in zip(real, outputs, strict=True)]))


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's."""
    ranks = [np.argsort(np.argsort(values)) for values in (first, second)]
    return float(np.asarray(np.corrcoef(np.stack(ranks)))[0, 1])


def rows_of(name: str, budgets: Sequence[str], plans: int, count: int) -> list[dict[str, Any]]:
    """All criteria of a task at all budgets; runs in a child."""
    task, rows = chosen(name)[0], []
    with tempfile.TemporaryDirectory(prefix="ptqc-bench-") as folder:
        samples = task.calibration(count + MOST_FRESH)[count:]
        if len(samples) < FEWEST_FRESH:
            return [{"task": name, "note": f"has {len(samples)} samples beyond the first {count}"}]
        bench = with_observed(Bench.of(task, count, Path(folder)))
        names = [str(value.name) for value in bench.model.graph.outputs]
        run = harness.open_model(task.path)
        real = [dict(zip(names, run(feeds), strict=True)) for feeds in samples]
        loss = OutputLoss.of(bench.analysis.kinds, real)

        def measured(data: bytes) -> float:
            path = Path(folder) / "plan.onnx"
            path.write_bytes(data)
            return true_loss(loss, real, harness.open_model(path), samples)

        for budget in budgets:
            limit = bench.limit(task, budget)
            named = dict(criteria(bench))
            drawn = drawn_plans(bench, list(named.values()), limit, plans)
            true = [measured(packed(bench, plan)) for plan in drawn]
            for criterion, losses in named.items():
                predicted = [sum(losses[key] for key in plan.formats.items()) for plan in drawn]
                row = {"task": name, "budget": budget, "criterion": criterion, "plans": plans, "loss_unit": loss.unit}
                row |= {"correlation": rank_correlation(predicted, true), "median": float(np.median(true))}
                picked = best(bench, losses, limit)
                row |= {"picked": measured(packed(bench, picked))}
                rows.append(row | {"reconstructed": measured(bench.reconstructed(picked))})
    return rows


def parse() -> argparse.Namespace:
    parser = harness.command_line_of_tasks(__doc__)
    parser.add_argument("--budgets", default="13%")
    parser.add_argument("--plans", type=int, default=40, help="plans that are drawn at each budget")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    names = [task.name for task in chosen(arguments.tasks)]
    wanted = arguments.budgets.split(","), arguments.plans, arguments.samples
    harness.tabulate(names, rows_of, wanted, COLUMNS, arguments.out)


if __name__ == "__main__":
    main()
