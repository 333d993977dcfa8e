"""How well the progress lines know what is left: the estimate after a tenth of each stage against what it took.

python benchmarks/estimates.py --tasks cifar10_resnet20,espcn_x3_224,mlperftiny_vww_mbv1_025_96 [--record]

Each task is compiled for 13 % from an empty store while the times of all steps are recorded, in seconds of processor
time of the process, which other work on the machine changes little. Of each stage of at least --shortest of these, the
estimate is what `ptqc.utils.progress.Left` makes of its steps from the moment on when a tenth of its time has passed
and a tenth of its steps are done, which is when it is first told. --record puts the rows into figures/estimates.json.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from harness import FIGURES, Column, Row, command_line_of_tasks, machine, number, percent, record, tabulate
from tasks import chosen

import ptqc
from ptqc.utils.progress import Left

COLUMNS = (
    Column("task", "task"),
    Column("stage", "stage"),
    Column("processor s", "seconds", number(1)),
    Column("steps", "steps", str),
    Column("first estimate, s", "estimate", number(1)),
    Column("of what it took", "ratio", number(2)),
    Column("told after", "after", percent(0)),
    Column("note", "note"),
)
BUDGET, TENTH, RIGHT = "13%", 0.1, 1.5


@dataclass
class Recorded:
    """A stage: when it began and ended, and how much was done when."""

    name: str
    total: int | None
    began: float
    ended: float = 0.0
    done: list[tuple[float, int]] = field(default_factory=list)

    def advance(self, label: str = "", steps: int = 1) -> None:  # noqa: ARG002
        """One more, or several."""
        self.done.append((time.process_time(), steps))

    @property
    def seconds(self) -> float:
        """From begin to end."""
        return self.ended - self.began

    def estimate(self) -> tuple[float, float] | None:
        """Seconds of the whole stage, as first estimated after a tenth of them, and when; None where it never is."""
        left, tenth = Left(self.total, self.began), self.began + TENTH * self.seconds
        for moment, steps in self.done:
            left.add(steps, moment)
            if moment >= tenth and (remaining := left.seconds(moment)) is not None:
                return moment - self.began + remaining, moment - self.began
        return None


class Recorder:
    """A progress object that keeps everything."""

    def __init__(self) -> None:
        self.stages: list[Recorded] = []

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Recorded]:
        """Record a stage."""
        self.stages.append(one := Recorded(name, total, time.process_time()))
        try:
            yield one
        finally:
            one.ended = time.process_time()

    def line(self, text: str) -> None:
        """Nothing is printed."""


def rows_of(name: str, samples: int, shortest: float) -> list[Row]:
    """The stages of one compile."""
    (task,), recorder = chosen(name), Recorder()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        ptqc.compile(
            task.path,
            budget=BUDGET,
            calibration=task.calibration(samples),
            output=folder / "out",
            cache=folder / "store",
            progress=recorder,
        )
    return [_row(name, stage) for stage in recorder.stages if stage.seconds >= shortest]


def _row(name: str, stage: Recorded) -> Row:
    row: Row = {"task": name, "budget": BUDGET, "stage": stage.name, "seconds": stage.seconds, "steps": stage.total}
    estimated = stage.estimate()
    if estimated is None:
        return {**row, "note": "no estimate"}
    estimate, moment = estimated
    ratio = estimate / stage.seconds
    return {
        **row,
        "estimate": estimate,
        "ratio": ratio,
        "after": moment / stage.seconds,
        "note": "" if 1 / RIGHT <= ratio <= RIGHT else "wrong",
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line_of_tasks(__doc__)
    parser.add_argument(
        "--shortest", type=float, default=2.0, help="processor seconds of a stage that is worth an estimate"
    )
    parser.add_argument("--record", action="store_true", help="put the rows into figures/estimates.json")
    options = parser.parse_args(arguments)
    names = (options.tasks or "cifar10_resnet20,espcn_x3_224,mlperftiny_vww_mbv1_025_96").split(",")
    rows = tabulate(names, rows_of, (options.samples, options.shortest), COLUMNS, options.out)
    if options.record:
        record(FIGURES / "estimates.json", rows, machine(), "stage")


if __name__ == "__main__":
    main()
