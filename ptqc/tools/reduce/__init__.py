"""A failing model made small: parts are cut off for as long as a command still fails on the rest in the same way."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from ptqc.calibration.images import AnyPreprocessing, Preprocessing
from ptqc.calibration.inputs import input_specs
from ptqc.calibration.samples import collect
from ptqc.calibration.synthetic import draw
from ptqc.errors import UsageError
from ptqc.execution.onnxruntime import Feeds
from ptqc.frontend.model_files import parse, read_bytes
from ptqc.frontend.tensors import check_tensors
from ptqc.ir.external import take_in
from ptqc.ir.zipmaps import as_tensors
from ptqc.tools.reduce.cut import Subgraph, Whole
from ptqc.tools.reduce.failure import COMPILE, SECONDS, Command, Failure, check_distinct
from ptqc.tools.reduce.recording import record
from ptqc.tools.reduce.search import smallest
from ptqc.tools.reduce.trials import Trials
from ptqc.utils.arguments import path_of
from ptqc.utils.deadline import Deadline
from ptqc.utils.logs import quiet_libraries
from ptqc.utils.progress import SILENT, Progress
from ptqc.utils.scratch import scratch

SAMPLES = 8


@dataclass(frozen=True)
class Reduced:
    """nodes: of the smallest model found, which lies in `model`, with samples for its inputs in `data`.

    of: nodes of the model given. trials: runs of the command. failure: what they were compared with.
    fails_with: the command that shows it.
    """

    model: Path
    data: Path
    nodes: int
    of: int
    trials: int
    failure: Failure
    fails_with: str

    def to_json(self) -> dict[str, Any]:
        """The document of `--json`."""
        return {
            "model": str(self.model),
            "data": str(self.data),
            "nodes": self.nodes,
            "of": self.of,
            "trials": self.trials,
            "failure": str(self.failure),
            "fails_with": self.fails_with,
        }

    def __str__(self) -> str:
        return (
            f"{self.nodes} of {self.of} nodes are left after {self.trials} trials: the command still {self.failure}\n"
            f"written to {self.model}, samples to {self.data}; see it with\n  {self.fails_with}"
        )


@quiet_libraries()
def reduce(
    model: str | Path,
    *,
    output: str | Path,
    command: Sequence[str] = COMPILE,
    data: object = None,
    preprocessing: AnyPreprocessing | None = None,
    message: str | None = None,
    time_limit: float = 0.0,
    seed: int = 0,
    progress: Progress = SILENT,
) -> Reduced:
    """Shrink a model on which a command fails, for a bug report.

    Args:
        model: The ONNX file on which the command fails.
        output: The ONNX file to write, with an .npz of samples beside it.
        command: A command of ptqc, or another program, as a list of words:
            `{model}` stands for the file, `{data}` for an .npz of samples.
        data: Samples as for `ptqc.compile`; None: synthetic ones.
        preprocessing: How image files become inputs, or the name of a preset.
        message: A regular expression that the message of the same failure
            matches. Without, the same failure is the same exit code or
            signal, and the same exception of ptqc.
        time_limit: Seconds after which the smallest model so far is taken;
            0: none.
        seed: Seed of the synthetic samples.
        progress: Shows progress, such as `ptqc.Lines()`.

    Returns:
        The reduced model, and how the command fails on it.

    Raises:
        UsageError: The command does not fail, or the output exists.

    Example:
        >>> ptqc.reduce("model.onnx", output="small.onnx",
        ...             data="images/")
    """
    started = time.monotonic()
    requested, path, place = Command.parse(command, message), path_of("model", model), path_of("output", output)
    _check_free(place)
    proto = as_tensors(parse(read_bytes(path)))
    check_tensors(proto, path)
    take_in(proto, path)
    with scratch() as temporary:
        folder = Path(temporary)
        samples = _samples(proto, data, Preprocessing.of(preprocessing), folder / "samples", seed)
        whole = Whole(proto, record(proto, samples, folder))
        trials = Trials(whole, folder, len(samples))
        failure, requested = _first(trials, requested)
        deadline, beside = Deadline.after(time_limit, started), place.with_suffix(".npz")
        with progress.stage("reduce") as stage:

            def fails(cut: Subgraph) -> bool:
                if not deadline.leaves(0) or trials.run(cut, requested)[0] != failure:
                    return False
                stage.advance(f"{len(cut.nodes)} nodes")
                return trials.write(cut, place, beside)  # at once, so that an interrupt loses nothing

            trials.write(whole.all(), place, beside)
            cut = smallest(whole, fails)
    nodes = (len(cut.nodes), len(whole.nodes))
    return Reduced(place, beside, *nodes, trials.count, failure, requested.command_line(place, beside))


def _check_free(place: Path) -> None:
    if place.suffix != ".onnx" or not place.resolve().parent.is_dir():
        raise UsageError(f"cannot write to {place}; give the path of an .onnx file in a folder that exists")
    for path in (place, place.with_suffix(".npz")):
        if path.exists():
            raise UsageError(f"{path} exists; give another file with -o")


def _samples(
    proto: onnx.ModelProto, data: object, preprocessing: Preprocessing | None, folder: Path, seed: int
) -> list[Feeds]:
    model = ir.from_proto(proto)
    if data is None:
        return list(draw(model, SAMPLES, seed, {}))
    return list(collect(data, input_specs(model), folder, SAMPLES, preprocessing))


def _first(trials: Trials, command: Command) -> tuple[Failure, Command]:
    """How the command fails on the whole model, and the command with a limit for its parts."""
    failure, seconds = trials.run(trials.whole.all(), command)
    if failure is None:
        result = command.command_line(Path("model.onnx"), Path("data.npz"))
        meant = f" with a message that matches {command.message!r}" if command.message else ""
        raise UsageError(f"nothing to reduce: `{result}` does not fail on the model{meant}")
    check_distinct(failure, command.message)
    return failure, replace(command, seconds=min(command.seconds, 3 * seconds + SECONDS))
