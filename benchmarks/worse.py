"""Published figures that are worse than they were at an earlier commit.

python benchmarks/worse.py COMMIT [--by 1.1] [--out results.json]

Compares the rows of figures/ with those of the commit, measure by measure, where both have a row of the same name.
Losses, times and bytes are worse where they are more than --by times what they were; scores where they fell by more
than POINTS. Neither says why: machines differ, and draws do, too.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import harness
from harness import FIGURES, ROOT, Column, Row, git, significant

LOSSES = ("kl_nat", "relative_error")
SCORE, POINTS = "difference", 0.5
COLUMNS = (
    Column("figures", "file"),
    Column("row", "row"),
    Column("measure", "measure"),
    Column("before", "before", significant(3)),
    Column("now", "now", significant(3)),
    Column("ratio", "ratio", significant(3)),
    Column("before", "commit_before"),
    Column("now", "commit_now"),
)


@dataclass(frozen=True)
class Figures:
    """Measures of a data file, less of which is better, and what tells its rows apart beside task and budget."""

    measures: tuple[str, ...]
    keys: tuple[str, ...] = ()


KNOWN = {
    "accuracy": Figures((*LOSSES, SCORE, "bytes")),
    "c_networks": Figures(("instructions", "code_bytes", "constant_bytes", "arena_bytes"), ("board",)),
    "calibration": Figures((*LOSSES, SCORE), ("calibration",)),
    "compile_time": Figures((*LOSSES, "compile_s", "resolve_s"), ("pipeline", "seed")),
    "formats": Figures((*LOSSES, SCORE), ("formats", "seed")),
    "latency": Figures(("ratio",), ("threads", "kernels")),
    "loading": Figures(("load_of_int8", "memory_of_int8"), ("file",)),
    "loss_budgets": Figures(("share", "seconds")),
    "native": Figures(("native_of_int8", "native_of_float"), ("threads", "kernels")),
    "peers": Figures(("ptqc_kl_nat", "ptqc_seconds"), ("peer",)),
    "runtimes": Figures(("ratio", "share_of_float"), ("runtime",)),
    "time_limits": Figures(("of_limit", "times_unlimited"), ("limit_s",)),
    "wild": Figures(("processor_seconds", "share_of_float")),
}


def worse(earlier: Sequence[Row], rows: Sequence[Row], figures: Figures, by: float) -> Iterator[Row]:
    """Measures of rows that are there in both, and are worse in the later ones."""
    keys = ("task", "budget", *figures.keys)
    by_name = {tuple(row[key] for key in keys): row for row in earlier if all(key in row for key in keys)}
    for row in rows:
        name = tuple(row.get(key) for key in keys)
        old = by_name.get(name, {})
        for measure in figures.measures:
            before, now = old.get(measure), row.get(measure)
            if before is None or now is None or not is_worse(measure, before, now, by):
                continue
            named = {"row": " ".join(str(part) for part in name if part not in ("", None)), "measure": measure}
            ratio = {} if measure == SCORE or not before else {"ratio": now / before}
            commits = {"commit_before": old.get("commit"), "commit_now": row.get("commit")}
            yield {**named, "before": before, "now": now, **ratio, **commits}


def is_worse(measure: str, before: float, now: float, by: float) -> bool:
    """Whether a figure is, by more than what does not matter."""
    return now < before - POINTS if measure == SCORE else now > by * before


def at(commit: str, name: str) -> list[Row]:
    """The rows of a data file at a commit; none where it had none."""
    path = (FIGURES / f"{name}.json").relative_to(ROOT).as_posix()
    return list(json.loads(git("show", f"{commit}:{path}"))["rows"]) if git("ls-tree", commit, "--", path) else []


def main() -> None:
    parser = harness.command_line(__doc__)
    parser.add_argument("commit")
    parser.add_argument("--by", type=float, default=1.1, help="how many times what it was is worse")
    arguments = parser.parse_args()
    rows = list[Mapping[str, Any]]()
    for name, figures in KNOWN.items():
        path = FIGURES / f"{name}.json"
        measured = harness.recorded(path) if path.exists() else []
        compared = worse(at(arguments.commit, name), measured, figures, arguments.by)
        rows += [{"file": name, **row} for row in compared]
    facts = harness.machine()
    harness.write_results(arguments.out, rows, facts)
    harness.print_results(rows, COLUMNS, facts)


if __name__ == "__main__":
    main()
