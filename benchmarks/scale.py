"""How long compiles of large models take on more workers and machines: a simulation fed with what real ones took.

python benchmarks/scale.py trace MODEL DATA --out TRACE [--executor threads] [--workers 1] [--work FOLDER]
python benchmarks/scale.py probe --widths 4096,8192,11008,28672 --out PROBES
python benchmarks/scale.py fit TRACE ... [--probes PROBES]
python benchmarks/scale.py [--record] [table]

`trace` compiles a model to 4 bits, activations in float, and writes what its stages and units took, in seconds of a
processor. `probe` solves single weights of the shapes of larger models. `fit` makes the costs of the simulation
(`scaling/costs.json`) of both, and compares what is simulated of the traced compiles with what they took. `table`
simulates models of 7 and 70 billion parameters from these costs; --record puts the rows into figures/scale.json.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import harness
from harness import ROOT, Column, number, percent, say
from scaling.jobs import (
    MEASURING,
    RECONSTRUCTING,
    Costs,
    Data,
    Matrix,
    behind_all,
    costs_of,
    job_of,
    matrices_of,
    measured_solving,
)
from scaling.probing import probed
from scaling.simulation import Cluster, Job, simulate
from scaling.tracing import SOLVING, Trace, UnitTimes, trace_compile

from ptqc.passes.quantize.moment_stream import SMALL_BLOCK_BYTES

sys.path.append(str(ROOT / "models"))

from random_llama import Shape

COSTS = Path(__file__).parent / "scaling" / "costs.json"
# Of Llama 2 (Touvron et al. 2023, arXiv 2307.09288).
LARGE = {"7 B": Shape(32, 4096, 32, 32, 11008, 32000), "70 B": Shape(80, 8192, 64, 8, 28672, 32000)}
# 128 sequences, as GPTQ's authors take them, a quarter as long.
DATA = Data(tokens=128 * 512, length=512)
WORKERS = (1, 2, 4, 16, 64)
# Of the machine of the compile; those that costs were measured on had 2.
PROCESSORS, MEASURED_PROCESSORS = 16, 2
# What all machines read and write of the store together, bytes a second: ten gigabits.
RATE = 1.25e9
# Mean seconds until a worker is lost, as machines are that a cloud may take back, and until another has its problem.
LIFETIME, REPAIR = 24 * 3600.0, 60.0
# Draws of which the mean is told.
DRAWS = 5
HOUR = 3600.0
# Memory for the second moments of a block, as it is and as it might be on a machine with more.
ROOMS = (("0.25 GiB", SMALL_BLOCK_BYTES), ("16 GiB", 2**34))
BUDGET = "4.1bit"
OPTIONS = {"bits": (4,), "activations": "float", "operators": "onnxruntime"}
CHECKS = (
    Column("compile", "model"),
    Column("workers", "workers"),
    Column("weights solved", "units"),
    Column("solving s, measured", "measured", number(1)),
    Column("simulated", "simulated", number(1)),
    Column("of measured", "ratio", number(2)),
)
COLUMNS = (
    Column("model", "task"),
    Column("moments of a block", "room"),
    Column("workers", "workers"),
    Column("hours", "hours", number(1)),
    Column("solving", "solving", number(1)),
    Column("measuring", "measuring", number(1)),
    Column("reconstructing", "reconstructing", number(1)),
    Column("workers busy", "busy", percent(0)),
    Column("problems repeated", "lost", number(1)),
)


def weights_of(shape: Shape) -> list[Matrix]:
    """The matrices of a decoder, in the order of its graph."""
    keys = shape.shared * shape.head
    layer = [(shape.width, shape.width), (keys, shape.width), (keys, shape.width), (shape.width, shape.width)]
    layer += [(shape.inner, shape.width), (shape.inner, shape.width), (shape.width, shape.inner)]
    matrices = [Matrix(*sizes) for sizes in layer * shape.layers]
    return [Matrix(shape.vocabulary * shape.width, 0), *matrices, Matrix(shape.vocabulary, shape.width)]


def checks_of(traces: Sequence[Trace], costs: Costs) -> list[dict[str, Any]]:
    """What is simulated of each traced compile beside what it took."""
    rows = list[dict[str, Any]]()
    for trace in traces:
        data = Data(trace.tokens, trace.length)
        job = job_of(matrices_of(trace), costs, data, MEASURED_PROCESSORS, is_sent=False)
        simulated = simulate(job, Cluster(trace.workers, makes_alone=False)).solving
        measured = measured_solving(trace, MEASURED_PROCESSORS)
        rows.append(
            {
                "model": trace.model,
                "workers": trace.workers,
                "units": len(trace.units),
                "measured": measured,
                "simulated": simulated,
                "ratio": simulated / measured,
            }
        )
    return rows


def rows_of(costs: Costs) -> list[dict[str, Any]]:
    """The large models on more and more workers."""
    rows = list[dict[str, Any]]()
    for name, shape in LARGE.items():
        weights = weights_of(shape)
        here = job_of(weights, costs, DATA, MEASURED_PROCESSORS, is_sent=False)
        cluster = Cluster(MEASURED_PROCESSORS, makes_alone=False, spread=costs.spread)
        behind = _behind(weights, costs, MEASURED_PROCESSORS)
        about = {"task": name, "budget": BUDGET}
        rows.append({**about, "room": ROOMS[0][0], "workers": "2 threads", **behind, **_mean(here, cluster)})
        behind = _behind(weights, costs, PROCESSORS)
        for label, room in ROOMS:
            job = job_of(weights, costs, DATA, PROCESSORS, is_sent=True, room=room)
            for workers in WORKERS:
                cluster = Cluster(workers, RATE, spread=costs.spread, lifetime=LIFETIME, repair=REPAIR)
                rows.append({**about, "room": label, "workers": workers, **behind, **_mean(job, cluster)})
    return rows


def _behind(matrices: Sequence[Matrix], costs: Costs, processors: int) -> dict[str, float]:
    seconds = behind_all(matrices, costs, DATA, processors)
    return {"measuring": seconds[MEASURING] / HOUR, "reconstructing": seconds[RECONSTRUCTING] / HOUR}


def _mean(job: Job, cluster: Cluster) -> dict[str, float]:
    """Of some draws of what happens by chance."""
    runs = [simulate(job, replace(cluster, seed=seed)) for seed in range(DRAWS)]
    means = {name: sum(getattr(one, name) for one in runs) / DRAWS for name in ("seconds", "solving", "busy", "lost")}
    return {
        "hours": means["seconds"] / HOUR,
        "solving": means["solving"] / HOUR,
        "busy": means["busy"],
        "lost": means["lost"],
    }


def read_costs(path: Path) -> Costs:
    """Costs that `fit` wrote."""
    document = json.loads(path.read_text())
    solve = {int(width): tuple(line) for width, line in document["costs"]["solve"].items()}
    return Costs(**{**document["costs"], "solve": solve})


def _read_traces(paths: Sequence[Path]) -> list[Trace]:
    return [Trace.of(json.loads(path.read_text())) for path in paths]


def fit(options: argparse.Namespace) -> None:
    """Write the costs, and print how well they tell what was measured."""
    traces = _read_traces(options.traces)
    local = [trace for trace in traces if trace.executor == "threads"]
    probes = [UnitTimes(**unit) for unit in json.loads(options.probes.read_text())] if options.probes else []
    # What two workers take is to be foretold, not fitted.
    fitted = [trace for trace in local if trace.workers == 1] or local
    costs = costs_of(fitted, [trace for trace in traces if trace not in local], probes)
    rows, facts = checks_of(local, costs), harness.machine()
    options.costs.write_text(json.dumps({"machine": facts, "costs": asdict(costs), "checks": rows}, indent=1) + "\n")
    harness.print_results(rows, CHECKS, facts)


def table(options: argparse.Namespace) -> None:
    """Print what is simulated."""
    rows, facts = rows_of(read_costs(options.costs)), json.loads(options.costs.read_text())["machine"]
    harness.write_results(options.out, rows, facts)
    if options.record:
        harness.record(harness.FIGURES / "scale.json", rows, facts, "room", "workers")
    harness.print_results(rows, COLUMNS, facts)


def trace(options: argparse.Namespace) -> None:
    """Compile, and write what it took."""
    options.work.mkdir(parents=True, exist_ok=True)
    compile_options = {**OPTIONS, "time_limit": options.time_limit}
    where = options.executor, options.workers
    until = SOLVING if options.until_solved else ""
    trace_compile(
        options.model, options.data, options.work, options.budget, *where, options.out, until, **compile_options
    )


def probe(options: argparse.Namespace) -> None:
    """Solve single weights, and write what they took."""
    units = list[UnitTimes]()
    for width in options.widths:
        units += probed([width])
        say(f"{width}: {', '.join(f'{unit.solve:.2f} s for {unit.channels} outputs' for unit in units[-2:])}")
    options.out.write_text(json.dumps([asdict(unit) for unit in units], indent=1) + "\n")


def main() -> None:
    """Do what is asked."""
    parser = harness.command_line(__doc__)
    parser.set_defaults(do=table)
    parser.add_argument("--costs", type=Path, default=COSTS, help="where the costs of the simulation are")
    parser.add_argument("--record", action="store_true", help="put the rows into figures/scale.json")
    commands = parser.add_subparsers()
    one = commands.add_parser("table")
    one.set_defaults(do=table)
    one = commands.add_parser("trace")
    one.set_defaults(do=trace)
    one.add_argument("model", type=Path)
    one.add_argument("data", type=Path, help="calibration data")
    one.add_argument("--executor", default="threads")
    one.add_argument("--workers", type=int, default=1)
    one.add_argument("--budget", default=BUDGET)
    one.add_argument("--until-solved", action="store_true", help="end when all weights are solved")
    one.add_argument("--time-limit", type=float, default=0.0, help="seconds")
    one.add_argument("--work", type=Path, default=harness.RESULTS / "scale", help="for the store and the artifact")
    one.add_argument("--out", type=Path, required=True)
    one = commands.add_parser("probe")
    one.set_defaults(do=probe)
    one.add_argument("--widths", type=lambda text: [int(width) for width in text.split(",")], required=True)
    one.add_argument("--out", type=Path, required=True)
    one = commands.add_parser("fit")
    one.set_defaults(do=fit)
    one.add_argument("traces", type=Path, nargs="+")
    one.add_argument("--probes", type=Path)
    options = parser.parse_args()
    options.do(options)


if __name__ == "__main__":
    main()
