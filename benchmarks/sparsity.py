"""Two of each four weights made zero: what it costs, and how much of that is repaired.

python benchmarks/sparsity.py [--tasks a,b] [--samples 256] [--orders [--record]] [--out results.json]

Steps: the largest two of each four kept and nothing else changed, in float; the zeros chosen by GPTQ, which passes on
the errors, with the numbers of the table of candidates; the same with the bias of each layer corrected and all layers
reconstructed in the order in which they run; and a whole compile, which takes the best of several reconstructions.
Files have the formats that lose least, whatever they take.

--orders: whole compiles to a budget instead, with channels in the order of the model and in that which pruning loses
least in. --record puts these into figures/pruning_orders.json.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import agreement
import harness
import numpy as np
import onnx_ir as ir
from ablation import Bench
from accuracy import score_float
from harness import Column, number
from tasks import Task, chosen

import ptqc
from ptqc import compiler
from ptqc.formats import TwoOfFour
from ptqc.formats.base import largest
from ptqc.formats.sparse import PATTERNS
from ptqc.ir.layers import Layer
from ptqc.passes.allocate.allocation import best_choice
from ptqc.passes.equalize.order_for_pruning import ordered_for_pruning
from ptqc.passes.quantize.gptq import ColumnOrder

# Of compiles that compare orders of channels.
BUDGET = "14%"

COLUMNS = (
    Column("task", "task"),
    Column("step", "step"),
    Column("channels", "order"),
    Column("bytes", "bytes", number(0)),
    Column("unit", "unit"),
    Column("score", "score", number(2)),
    *agreement.COLUMNS,
    Column("cosine", "cosine", number(4)),
)

RECORDED = ("task", "budget", "order", "unit", "bytes", "score", "top1_agreement", "kl_nat", "relative_error")


class WithCosine(agreement.Agreement):
    """The agreement, and the mean cosine between the first outputs of both models, each sample as one vector."""

    def __init__(self, has_classes: bool) -> None:
        super().__init__(has_classes)
        self.cosines: list[float] = []

    def add(self, real: Sequence[np.ndarray], tested: Sequence[np.ndarray]) -> None:
        """One run of both models."""
        super().add(real, tested)
        a, b = (np.asarray(outputs[0], np.float64).reshape(len(outputs[0]), -1) for outputs in (real, tested))
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        self.cosines += ((a * b).sum(1) / np.maximum(lengths, 1e-30)).tolist()


def magnitudes(bench: Bench) -> bytes:
    """The float model with the largest two of each four weights, of the layers that a compile prunes."""
    model = bench.model.clone()
    layers = {layer.weight: layer for layer in bench.analysis.layers}
    pruned = {name for name, form in bench.analysis.solutions if isinstance(form, TwoOfFour) and name in layers}
    for name in pruned:
        initializer = model.graph.initializers[name]
        initializer.const_value = ir.tensor(_largest_two(layers[name], initializer.const_value.numpy()), name=name)
    return bytes(ir.to_proto(model).SerializeToString())


def _largest_two(layer: Layer, values: np.ndarray) -> np.ndarray:
    order = ColumnOrder.of(TwoOfFour, layer)
    matrix = order.rows(layer.matrix(values))
    pruned = np.where(largest(np.abs(matrix), PATTERNS), matrix, np.float32(0))
    return np.ascontiguousarray(layer.tensor(order.restored(pruned)))


def steps(bench: Bench) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """The name of each step and what makes its file."""
    plan = bench.undecided.with_formats(best_choice(bench.problem))
    yield "the largest two, in float", lambda: magnitudes(bench)
    yield "zeros chosen by GPTQ", lambda: bench.table(plan)
    yield "+ reconstruction, biases", lambda: bench.reconstructed(plan)
    yield "compile", lambda: bench.compiled(None)


def rows_of(name: str, samples: int) -> list[dict[str, Any]]:
    """All steps of a task; runs in a child."""
    task, rows = chosen(name)[0], []
    real = score_float(name)
    with tempfile.TemporaryDirectory(prefix="ptqc-bench-") as folder:
        bench = Bench.of(task, samples, Path(folder), sparsity="2:4")
        for step, make in steps(bench):
            harness.say(f"{name} {step}")
            path = Path(folder) / "step.onnx"
            path.write_bytes(make())
            rows.append({"task": name, "step": step, "unit": task.unit, "bytes": path.stat().st_size})
            rows[-1] |= _scored(task, path, real)
    return rows


def rows_of_orders(name: str, samples: int) -> list[dict[str, Any]]:
    """A compile with channels as they are, and one with channels ordered for pruning; runs in a child."""
    task, rows = chosen(name)[0], []
    real = score_float(name)
    for order, stage in (("as in the model", lambda prepared, *_: prepared), ("for pruning", ordered_for_pruning)):
        harness.say(f"{name} {order}")
        with (
            tempfile.TemporaryDirectory(prefix="ptqc-bench-") as folder,
            mock.patch.object(compiler, "ordered_for_pruning", stage),
        ):
            options: dict[str, Any] = {"calibration": task.calibration(samples), "samples": samples}
            artifact = ptqc.compile(
                task.path, budget=BUDGET, sparsity="2:4", output=f"{folder}/out", cache=f"{folder}/store", **options
            )
            size = artifact.path.stat().st_size
            row = {"task": name, "budget": BUDGET, "order": order, "unit": task.unit, "bytes": size}
            rows.append(row | _scored(task, artifact.path, real))
    return rows


def _scored(task: Task, path: Path, real: float) -> dict[str, Any]:
    comparison = WithCosine(task.has_classes)
    score = float(task.score(agreement.compared(harness.open_model(task.path), harness.open_model(path), comparison)))
    return {"score": score, "difference": score - real, "cosine": np.mean(comparison.cosines), **comparison.to_json()}


def parse() -> argparse.Namespace:
    parser = harness.command_line_of_tasks(__doc__)
    parser.add_argument("--orders", action="store_true", help="compare orders of channels")
    parser.add_argument("--record", action="store_true", help="in the data that documents are written from")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    names = [task.name for task in chosen(arguments.tasks)]
    if not arguments.orders:
        harness.tabulate(names, rows_of, (arguments.samples,), COLUMNS, arguments.out)
        return
    rows = harness.tabulate(names, rows_of_orders, (arguments.samples,), COLUMNS, arguments.out)
    if arguments.record:
        recorded = [{key: row[key] for key in RECORDED if key in row} for row in rows if "score" in row]
        harness.record(harness.FIGURES / "pruning_orders.json", recorded, harness.machine(), "order")


if __name__ == "__main__":
    main()
