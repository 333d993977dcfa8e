"""What each step adds: one width for all layers, a greedy and the best choice of formats, codebooks, reconstruction.

python benchmarks/ablation.py [--tasks a,b] [--budgets 13%,10%] [--samples 256] [--out results.json]

All steps start from the same measurements and keep the same budget. A plan of one width rarely fills it, so the whole
compile is also shown at that plan's bytes.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import agreement
import harness
from accuracy import score_compiled, score_float
from harness import Column, number
from tasks import Task, chosen

from ptqc import budget as budgets
from ptqc.api import compile as compile_model
from ptqc.errors import Infeasible, UsageError
from ptqc.ir.plan import Plan
from ptqc.options import CompileOptions, Pipeline
from ptqc.passes.allocate import problem
from ptqc.passes.allocate.allocation import Candidate, Problem, allocate, best_choice
from ptqc.passes.allocate.constraints.size import SizeBudget
from ptqc.passes.allocate.fit import fit
from ptqc.passes.quantize.measure import recall
from ptqc.passes.quantize.phases import Analysis, AnalyzedPlan
from ptqc.passes.reconstruct.reconstruct import Reconstruct
from ptqc.utils.progress import SILENT
from ptqc.utils.store import Store

# Of a budget: what reconstruction may add to a plan's file in digits of biases and levels.
MARGIN = 0.002
COLUMNS = (
    Column("task", "task"),
    Column("budget", "budget"),
    Column("step", "step"),
    Column("bytes", "bytes", number(0)),
    Column("unit", "unit"),
    *agreement.COLUMNS,
    Column("note", "note"),
)


@dataclass(frozen=True)
class Bench:
    """The measurements of a task."""

    model: Any
    analysis: Analysis
    options: CompileOptions

    @classmethod
    def of(cls, task: Task, samples: int, folder: Path, **compile_options: Any) -> "Bench":
        """Compile once without a budget, and recall what was measured. compile_options: others."""
        store = folder / "store"
        artifact = compile_model(
            task.path,
            calibration=task.calibration(samples),
            output=folder / "out",
            cache=store,
            samples=samples,
            **compile_options,
        )
        prepared, analysis, options, _ = recall(Store(store), artifact.manifest["measurements"], SILENT)
        return cls(prepared.model, analysis, options)

    @cached_property
    def even(self) -> "Bench":
        """The same with even grids alone."""
        solutions = {key: value for key, value in self.analysis.solutions.items() if not key[1].is_learned}
        return replace(self, analysis=replace(self.analysis, solutions=solutions))

    @property
    def undecided(self) -> Plan:
        """A plan without formats."""
        return self.analysis.undecided

    @cached_property
    def problem(self) -> Problem:
        """The candidates with their bytes and losses."""
        return problem.problem_of(self.analysis, self.undecided, self.options)

    def limit(self, task: Task, budget: str) -> int:
        """Bytes that a budget allows the file of the task. Raises UsageError for a budget of another kind."""
        size = budgets.parse(budget)
        if not isinstance(size, SizeBudget):
            raise UsageError(f"budget {budget!r} is none of size; give one such as 13% or 4.5MB")
        return size.limit(task.path.stat().st_size, sum(w.size for w in self.analysis.weights))

    def table(self, plan: Plan) -> bytes:
        """A plan's file with the numbers of the table of candidates."""
        numbers = problem.table_parameters(self.analysis, plan.formats)
        return problem.packed(self.analysis, plan, numbers)[1].data

    def reconstructed(self, plan: Plan) -> bytes:
        """A plan's file after one reconstruction."""
        return problem.packed(self.analysis, plan, Reconstruct().apply(AnalyzedPlan(self.analysis, plan)).output)[
            1
        ].data

    def compiled(self, limit: int | None, pipeline: Pipeline = "light") -> bytes:
        """The file of a whole compile."""
        return fit(self.analysis, replace(self.options, pipeline=pipeline), limit).exported.data


def best(bench: Bench, limit: int, problem: Problem | None = None) -> Plan:
    """The integer program's plan. problem: in place of the one with the measured losses."""
    problem = problem or bench.problem
    most = problem.size(best_choice(problem))
    return bench.undecided.with_formats(allocate(problem, min(most, int(limit * (1 - MARGIN)))).choice)


def greedy(bench: Bench, limit: int) -> Plan:
    """From the best plan on, always the change that loses least for each byte that it saves."""
    problem = bench.problem
    choice, groups = dict(best_choice(problem)), problem.by_weight()
    while problem.size(choice) > limit * (1 - MARGIN):
        changes = [change for name, group in groups.items() for change in _changes(group, choice[name])]
        if not changes:
            raise Infeasible("no change saves more bytes", problem.size(choice), ())
        _, changed = min(changes, key=lambda change: change[0])
        choice[changed.weight] = changed.form
    return bench.undecided.with_formats(choice)


def _changes(group: Sequence[Candidate], form: Any) -> Iterator[tuple[float, Candidate]]:
    """Loss per byte saved of every smaller candidate of a weight."""
    now = next(candidate for candidate in group if candidate.form == form)
    for other in group:
        if other.bytes < now.bytes:
            yield (other.loss - now.loss) / (now.bytes - other.bytes), other


def uniform(bench: Bench, limit: int) -> Plan:
    """Every layer in the widest even grid that keeps the limit. Raises Infeasible."""
    plans = [of_width(bench, bits) for bits in sorted(bench.options.bits, reverse=True)]
    sizes = [bench.problem.size(plan.formats) for plan in plans]
    for plan, size in zip(plans, sizes, strict=True):
        if size <= limit * (1 - MARGIN):
            return plan
    raise Infeasible(f"the narrowest grid takes {sizes[-1]:,} bytes", sizes[-1], ())


def of_width(bench: Bench, bits: int) -> Plan:
    """Every layer in the even grid of so many bits that has one, the others in their best format. Raises Infeasible."""
    forms = {c.weight: c.form for c in bench.problem.candidates if str(c.form) == f"int{bits}"}
    if not forms:
        raise Infeasible(f"no layer has an even grid of {bits} bits", 0)
    return bench.undecided.with_formats({**best_choice(bench.problem), **forms})


def steps(bench: Bench, limit: int) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """The name of each step and what makes its file."""

    @cache
    def one_width() -> bytes:
        return bench.even.reconstructed(uniform(bench.even, limit))

    yield "one width", one_width
    yield "compile at the bytes of one width", lambda: bench.compiled(len(one_width()))
    yield "greedy, codebooks, reconstructed", lambda: bench.reconstructed(greedy(bench, limit))
    yield "integer program", lambda: bench.even.table(best(bench.even, limit))
    yield "+ codebooks", lambda: bench.table(best(bench, limit))
    yield "+ reconstruction", lambda: bench.reconstructed(best(bench, limit))
    yield "light (best of several)", lambda: bench.compiled(limit)
    yield "advanced", lambda: bench.compiled(limit, "advanced")


def rows_of(name: str, budgets: Sequence[str], samples: int) -> list[dict[str, Any]]:
    """All steps of a task at all budgets; runs in a child."""
    task, rows = chosen(name)[0], []
    real = score_float(name)
    with tempfile.TemporaryDirectory(prefix="ptqc-bench-") as folder:
        bench = Bench.of(task, samples, Path(folder))
        for budget in budgets:
            limit = bench.limit(task, budget)
            for step, make in steps(bench, limit):
                harness.say(f"{name} {budget} {step}")
                row = {"task": name, "budget": budget, "step": step, "unit": task.unit}
                rows.append(row | scored(task, make, Path(folder) / "step.onnx", real))
    return rows


def scored(task: Task, make: Callable[[], bytes], path: Path, real: float) -> dict[str, Any]:
    """Bytes, score and agreement of a file, or why there is none."""
    try:
        path.write_bytes(make())
    except Infeasible as error:
        return {"note": f"infeasible: {error.smallest:,} bytes"}
    scores = score_compiled(task.name, str(path))
    return {"bytes": path.stat().st_size, "difference": scores["score"] - real, **scores}


def parse() -> argparse.Namespace:
    parser = harness.command_line_of_tasks(__doc__)
    parser.add_argument("--budgets", default="13%,10%")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    names = [task.name for task in chosen(arguments.tasks)]
    harness.tabulate(names, rows_of, (arguments.budgets.split(","), arguments.samples), COLUMNS, arguments.out)


if __name__ == "__main__":
    main()
