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
import torch
from ablation import Bench
from harness import Column, Feeds, Run, number, significant
from tasks import chosen
from torch import Tensor

from ptqc.execute.torch.graph import TorchGraph
from ptqc.execute.torch.types import tensor_of
from ptqc.formats import Format
from ptqc.graph.layers import Layer
from ptqc.graph.nodes import initial
from ptqc.losses import OutputLoss, Outputs
from ptqc.losses.classes import Logits, Probabilities
from ptqc.losses.relative import Relative
from ptqc.passes.decide.calibrate import Calibrate
from ptqc.passes.decide.measure_sensitivity import MeasureSensitivity, mean_shift
from ptqc.passes.decide.phases import Decided, Setting, Solved
from ptqc.plan import Plan
from ptqc.solutions import TunedNumbers
from ptqc.solvers.moments import error
from ptqc.stages import problem

Losses = Mapping[tuple[str, Format], float]
Phase = TypeVar("Phase", bound=Setting)

FEWEST_FRESH, MOST_FRESH = 64, 1000
# Deviation of the logarithm of the losses that plans are drawn with.
DISTURBANCE = 1.0
# Samples whose gradients are taken, and directions of the outputs of each.
SAMPLES, DIRECTIONS = 64, 4
SMALLEST_PROBABILITY = 1e-12
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


def criteria(bench: Bench, loss: OutputLoss) -> Iterator[tuple[str, Losses]]:
    """The name of every prediction, and the losses that it gives the candidates."""
    yield "local error", bench.decided.errors
    if all(isinstance(kind, Logits | Probabilities | Relative) for kind in loss.kinds.values()):
        yield "curvature", curvature(bench, loss)
    yield "outputs", bench.decided.weight_losses
    yield "outputs, squared error", squared(bench)


def at(phase: type[Phase], decided: Decided) -> Phase:
    """What was known after an earlier pass."""
    return phase(**{each.name: getattr(decided, each.name) for each in fields(phase)})


def with_moments(bench: Bench) -> Bench:
    """With the moments of what layers multiply, which are not in the store."""
    observed = Calibrate().apply(at(Setting, bench.decided)).made
    return replace(bench, decided=replace(bench.decided, moments=observed.moments, held_moments=observed.held_moments))


def squared(bench: Bench) -> Losses:
    """What the table of losses is by the squared error of the outputs."""
    return MeasureSensitivity("mse").apply(at(Solved, bench.decided)).made.weight_losses


def curvature(bench: Bench, loss: OutputLoss) -> Losses:
    """½ E[g²] E[δ²] summed over the outputs of a layer: g, the gradient of the loss; δ, what a candidate changes.

    The diagonal of Fisher's information for classes, of Gauss and Newton's matrix for squared errors.
    """
    squares, found = _squared_gradients(bench, loss), dict[tuple[str, Format], float]()
    for layer in bench.decided.layers:
        second = bench.decided.held_moments[layer.weight].second()
        original = initial(bench.model, layer.weight)
        for key, solution in bench.decided.solutions.items():
            if key[0] == layer.weight:
                changed = error(layer.matrix(original - solution.weight), second).reshape(-1)
                found[key] = found.get(key, 0.0) + 0.5 * float(changed @ squares[layer.name])
    return found


def _squared_gradients(bench: Bench, loss: OutputLoss) -> dict[str, np.ndarray]:
    """Of every layer and output channel: squared gradients summed over positions, mean over samples and directions."""
    graph, random = TorchGraph(bench.model), torch.Generator().manual_seed(0)
    layers = {layer.name: layer for layer in bench.decided.layers}
    total = {name: np.zeros(layer.channels) for name, layer in layers.items()}
    samples = bench.decided.held_back[:SAMPLES]
    for feeds in samples:
        seen, outputs = _watched(graph, feeds, layers)
        for _ in range(DIRECTIONS):
            direction = _direction(loss, outputs, random)
            gradients = torch.autograd.grad(direction, list(seen.values()), retain_graph=True)
            for name, gradient in zip(seen, gradients, strict=True):
                total[name] += _by_channel(layers[name], gradient.square())
    return {name: value / (len(samples) * DIRECTIONS) for name, value in total.items()}


def _watched(
    graph: TorchGraph, feeds: Feeds, names: Mapping[str, Layer]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Outputs of the layers, with gradients, and of the graph."""
    seen = dict[str, Tensor]()

    def watch(name: str, value: Tensor) -> Tensor:
        if name in names:
            seen[name] = value if value.requires_grad else value.requires_grad_()
        return value

    return seen, graph.run({name: tensor_of(value) for name, value in feeds.items()}, hook=watch)


def _by_channel(layer: Layer, values: Tensor) -> np.ndarray:
    axis = 1 if layer.op_type == "Conv" else values.ndim - 1
    return values.movedim(axis, 0).flatten(1).sum(1).double().numpy()


def _direction(loss: OutputLoss, outputs: Mapping[str, Tensor], random: torch.Generator) -> Tensor:
    """A scalar whose squared gradient is, on average, the curvature of the loss along each value."""
    total = torch.zeros(())
    for name, kind in loss.kinds.items():
        y = outputs[name]
        if isinstance(kind, Relative):
            signs = torch.randint(0, 2, y.shape, generator=random) * 2 - 1
            total = total + (signs * y / _variance(kind, y).sqrt()).sum() * (2 / y.numel()) ** 0.5
        else:
            assert isinstance(kind, Logits | Probabilities)
            y = y.movedim(kind.axis, -1)
            log_p = _log_probabilities(y, normalized=isinstance(kind, Probabilities)).flatten(0, -2)
            drawn = torch.multinomial(log_p.detach().exp(), 1, generator=random)
            total = total + log_p.gather(1, drawn).sum() / len(log_p) ** 0.5
    return total


def _log_probabilities(x: Tensor, *, normalized: bool) -> Tensor:
    """Of class scores on the last axis. normalized: they went through a softmax already."""
    return torch.log_softmax(x.clamp_min(SMALLEST_PROBABILITY).log() if normalized else x, -1)


def _variance(kind: Relative, output: Tensor) -> Tensor:
    """Per channel, shaped to broadcast against the output."""
    assert kind.variance is not None
    shape = [1] * output.ndim
    if kind.axis is not None and kind.variance.ndim:
        shape[kind.axis] = -1
    return tensor_of(kind.variance).float().reshape(shape)


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
    numbers = problem.table_numbers(bench.decided, plan.formats)
    biases = dict(numbers.biases)
    for layer in bench.decided.layers:
        if (bias := biases[layer.name]) is not None:
            original = np.zeros_like(bias) if layer.bias is None else bias
            shift = mean_shift(bench.decided, layer, numbers.weights[layer.weight].weight)
            biases[layer.name] = original + shift
    return problem.packed(bench.decided, plan, TunedNumbers(numbers.weights, biases))[1].data


def true_loss(loss: OutputLoss, real: Sequence[Outputs], run: Run, samples: Sequence[Feeds]) -> float:
    """Mean loss of a file's outputs."""
    found = (dict(zip(wanted, run(feeds), strict=True)) for wanted, feeds in zip(real, samples, strict=True))
    return float(np.mean([loss(wanted, given) for wanted, given in zip(real, found, strict=True)]))


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
        bench = with_moments(Bench.of(task, count, Path(folder)))
        names = [str(value.name) for value in bench.model.graph.outputs]
        run = harness.open_model(task.path)
        real = [dict(zip(names, run(feeds), strict=True)) for feeds in samples]
        loss = OutputLoss.of(bench.decided.kinds, real)

        def measured(data: bytes) -> float:
            path = Path(folder) / "plan.onnx"
            path.write_bytes(data)
            return true_loss(loss, real, harness.open_model(path), samples)

        for budget in budgets:
            limit = bench.limit(task, budget)
            named = dict(criteria(bench, loss))
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
