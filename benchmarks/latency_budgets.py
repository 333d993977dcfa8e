"""Predicted and measured latencies, and files that keep a size and a latency at once, in a library or ONNX Runtime.

python benchmarks/latency_budgets.py --tasks a,b [--of cpu,onnxruntime] [--size 13%] [--choices 3] [--out results.json]
                                     [--record]

For each task and runtime: times of operators are measured; then choices of sites, all on codes and random ones, are
built and timed in turns with the float network, beside what was predicted. At last a latency is asked for together with
the size that the file for the size alone does not keep: half-way between the float network and the fastest choice.
--record puts the rows into figures/latency_budgets.json.
"""

import argparse
import tempfile
from collections.abc import Sequence
from typing import Any

import harness
import numpy as np
from harness import Column, in_child, number
from tasks import chosen

MILLISECOND = 1e6
# Leaves what the size alone decides in float, so that a latency has something to choose.
LIMIT = 1e-9
# Percent of the measured latency within which a prediction is close.
CLOSE = 5.0
COLUMNS = (
    Column("task", "task"),
    Column("latency of", "of"),
    Column("float ms", "float_ms", number(3)),
    Column("all on codes ms", "codes_ms", number(3)),
    Column("fastest of the choices ms", "fastest_ms", number(3)),
    Column("mean error %", "mean_error", number(1)),
    Column("largest %", "largest_error", number(1)),
    Column("measuring s", "measuring_seconds", number(1)),
    Column("budget ms", "budget_ms", number(3)),
    Column("by size alone ms", "size_alone_ms", number(3)),
    Column("predicted ms", "predicted_ms", number(3)),
    Column("measured ms", "measured_ms", number(3)),
    Column("of size limit", "of_limit", number(3)),
    Column("kept", "kept"),
    Column("note", "note"),
)


def measure(name: str, of: str, arguments: argparse.Namespace, cache: str) -> dict[str, Any]:
    """The row of a task; runs in a child."""
    import ptqc
    from ptqc.codegen.targets import choose
    from ptqc.passes.allocate.constraints.latency import LatencyBudget, meter_of
    from ptqc.passes.quantize.measure import recall
    from ptqc.utils.progress import SILENT
    from ptqc.utils.store import Store
    from ptqc.utils.threads import one_blas_thread

    task, target = chosen(name)[0], None if of == "onnxruntime" else of
    options: dict[str, Any] = {"calibration": task.calibration(arguments.samples), "activation_limit": LIMIT}
    first = ptqc.compile(task.path, budget=arguments.size, output=f"{cache}/first", cache=cache, force=True, **options)
    store = Store.at(cache)
    budget = LatencyBudget(1.0, target or "")
    clock = meter_of(budget, choose(target, {}), store)
    with one_blas_thread():
        _, analysis, used, _ = recall(store, first.manifest["measurements"], SILENT)
        predicted = predictions(clock, analysis, used, arguments.choices)
    asked = (predicted["float_ms"] + predicted["fastest_ms"]) / 2
    written = f"{asked:.4g}ms" + (f"@{target}" if target else "")
    second = ptqc.resolve(
        first.folder, output=f"{cache}/second", budget=[arguments.size, written], cache=cache, target=target, force=True
    )
    report = second.manifest["latency"]
    return predicted | {
        "budget_ms": report["budget_ms"],
        "predicted_ms": report["predicted_ms"],
        "measured_ms": report["measured_ms"],
        "of_limit": second.path.stat().st_size / second.manifest["allocation"]["limit"],
        "kept": "yes" if all(budget.kept for budget in second.budgets) else f"no: {second.budgets}",
        "runtime": report["runtime"],
    }


def predictions(clock: Any, analysis: Any, options: Any, choices: int) -> dict[str, Any]:
    """Predicted and measured times of choices, as milliseconds of a float network that takes what it took at first."""
    import time

    from ptqc.passes.allocate.constraints.clocks import any_plan, network_of
    from ptqc.utils.progress import SILENT

    started = time.monotonic()
    times, network = clock.measure(analysis, options, SILENT), network_of(analysis)
    seconds = time.monotonic() - started
    real = network.predict(times, ())
    rows = []
    for sites in ([*analysis.sites], *(random_sites(analysis, seed) for seed in range(choices))):
        plan = any_plan(analysis, options, {site.name: analysis.ranges[site.name] for site in sites})
        before, after = clock.latencies(analysis, options, plan)
        rows.append({"predicted": network.predict(times, plan.params) / real, "measured": after / before})
    before, alone = clock.latencies(analysis, options, any_plan(analysis, options, analysis.activations))
    errors = [100 * abs(row["predicted"] / row["measured"] - 1) for row in rows]
    return {
        "float_ms": real / MILLISECOND,
        "codes_ms": rows[0]["measured"] * real / MILLISECOND,
        "fastest_ms": min(row["measured"] for row in rows) * real / MILLISECOND,
        "size_alone_ms": alone / before * real / MILLISECOND,
        "mean_error": float(np.mean(errors)),
        "largest_error": max(errors),
        "choices": len(rows),
        "close": sum(error <= CLOSE for error in errors),
        "timed": rows,
        "measuring_seconds": seconds,
    }


def random_sites(analysis: Any, seed: int) -> Sequence[Any]:
    """Sites that serve layers, of a random share of all."""
    from ptqc.ir.sites import useful_sites

    rng = np.random.default_rng(seed)
    share = rng.uniform(0.5, 1.0)
    some = [site for site in analysis.sites if rng.random() < share]
    return useful_sites(some, analysis.kernels, {layer.name for layer in analysis.layers})


def parse() -> argparse.Namespace:
    parser = harness.command_line(__doc__)
    parser.add_argument("--tasks", help="comma-separated; default: all")
    parser.add_argument("--of", default="cpu,onnxruntime", help="targets whose library is timed, and onnxruntime")
    parser.add_argument("--size", default="13%", help="the other budget")
    parser.add_argument("--choices", type=int, default=3, help="random choices that are built and timed")
    parser.add_argument("--samples", type=int, default=24, help="calibration samples")
    parser.add_argument("--record", action="store_true", help="put the rows into figures/latency_budgets.json")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    facts, rows = harness.machine(), []
    for task in chosen(arguments.tasks):
        with tempfile.TemporaryDirectory(prefix="ptqc-bench-") as cache:
            for of in arguments.of.split(","):
                harness.say(f"{task.name}: {of}")
                outcome = in_child(measure, task.name, of, arguments, cache)
                about = {"task": task.name, "budget": arguments.size, "of": of}
                rows.append({**about, "note": outcome.error, **(outcome.value or {})})
                harness.write_results(arguments.out, rows, facts)
    if arguments.record:
        harness.record(harness.FIGURES / "latency_budgets.json", rows, facts, "of")
    harness.print_results(rows, COLUMNS, facts)


if __name__ == "__main__":
    main()
