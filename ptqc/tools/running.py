"""`ptqc run`: what a model or an artifact makes of given samples, written to files."""

import tempfile
import time
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ptqc.calibration.images import AnyPreprocessing
from ptqc.calibration.inputs import input_specs, sample_name
from ptqc.calibration.samples import EVERY_SAMPLE, CheckedSample, checked
from ptqc.calibration.sources import SampleSource, open_source
from ptqc.errors import UsageError
from ptqc.execution.onnxruntime import Feeds, tensors_of
from ptqc.frontend.in_memory import Model
from ptqc.tools.comparing.contenders import Contender, contenders, images_as_compiled, running, texts_as_compiled
from ptqc.utils.arguments import path_of
from ptqc.utils.logs import quiet_libraries
from ptqc.utils.progress import SILENT, Progress
from ptqc.utils.store import write_npz
from ptqc.utils.text import number, visible


@dataclass(frozen=True)
class RunOutputs:
    """What was run. output: the .npz file or the folder that was written. shapes: of outputs, by name, of all samples.

    milliseconds: of a sample on average, as time passes. notes: what to look at.
    """

    model: str
    runtime: str
    output: Path
    samples: int
    shapes: Mapping[str, Set[tuple[int, ...]]]
    milliseconds: float
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The document of `--json`."""
        return {
            "model": self.model,
            "runtime": self.runtime,
            "output": str(self.output),
            "samples": self.samples,
            "shapes": {name: sorted(map(list, shapes)) for name, shapes in self.shapes.items()},
            "milliseconds": self.milliseconds,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        outputs = [
            f"  {visible(name)}  {' or '.join(sorted(map(str, shapes)))}" for name, shapes in self.shapes.items()
        ]
        message = (
            f"{self.samples:,} samples in {self.runtime}, {number(self.milliseconds)} ms each; outputs of a sample:"
        )
        warnings = [f"WARNING: {note}" for note in self.notes]
        return "\n".join([message, *outputs, f"written to {self.output}", *warnings])


@quiet_libraries()
def run(
    model: Model,
    data: object,
    *,
    output: str | PathLike[str],
    preprocessing: AnyPreprocessing | None = None,
    threads: int = 0,
    onnx_only: bool = False,
    progress: Progress = SILENT,
) -> RunOutputs:
    """Run a model on every sample and write its outputs.

    Samples are read as they are run, so they need not fit into memory.

    Args:
        model: An ONNX file, a model in memory, or an artifact, whose native
            library runs if there is one for this machine.
        data: Samples as `calibration` of `ptqc.compile`; text is read as the
            compile read it.
        output: An `.npz` file, which gets one array for each output with the
            samples along axis 0; or a folder, which gets an `.npz` for each
            sample, named like its file.
        preprocessing: How image files become inputs, or the name of a preset.
        threads: Threads of a run; 0: one for each core.
        onnx_only: Leave the native library out.
        progress: Shows progress, such as `ptqc.Lines()`.

    Returns:
        Where the outputs are, and how many samples were run.

    Raises:
        UsageError: The output exists, or samples have outputs of different
            shapes, which need a folder.
        CalibrationError: A sample does not fit the model; nothing is written.

    Example:
        >>> ptqc.run("out", "images/", output="logits.npz")
    """
    place = path_of("output", output)
    if place.exists() or not place.resolve().parent.is_dir():
        raise UsageError(f"cannot write to {place}: give a new file or folder, within a folder that exists")
    result = list(contenders(model, threads))
    chosen = result[0] if onnx_only else result[-1]
    inputs = input_specs(chosen.model)
    prepared, notes = images_as_compiled(preprocessing, result, data)
    data, more = texts_as_compiled(data, result)
    stream = open_source(data, inputs, EVERY_SAMPLE, prepared)
    with tempfile.TemporaryDirectory(dir=place.resolve().parent, prefix=".ptqc-run-") as room:
        writer = _Stacked(place) if place.suffix == ".npz" else _Separate(place, Path(room) / "outputs", stream)
        count, seconds = _run(chosen, checked(stream, inputs, EVERY_SAMPLE), stream.count, writer, progress)
        writer.close()
    return RunOutputs(chosen.name, chosen.runtime, place, count, writer.shapes, 1e3 * seconds / count, (*notes, *more))


class _Stacked:
    """All outputs in one file: what one sample makes counts as rows of axis 0."""

    def __init__(self, place: Path) -> None:
        self._place, self._rows = place, dict[str, list[np.ndarray]]()
        self.shapes: dict[str, set[tuple[int, ...]]] = {}

    def add(self, number: int, outputs: Feeds) -> None:
        """Raises UsageError for a sample whose outputs have other shapes than those before."""
        for name, array in outputs.items():
            before = self._rows.setdefault(name, [])
            (first,) = self.shapes.setdefault(name, {array.shape})
            if first != array.shape:
                raise UsageError(
                    f"output {name!r} has the shape {array.shape} for {sample_name(number)}, {first} for the first: "
                    f"give a folder with -o, such as {self._place.with_suffix('')}, for a file per sample"
                )
            before.append(np.atleast_1d(array))

    def close(self) -> None:
        """Write the file."""
        write_npz(self._place, {name: np.concatenate(rows) for name, rows in self._rows.items()})


class _Separate:
    """A file per sample, named like its own file, or by its number. room: where they lie until all are there."""

    def __init__(self, place: Path, room: Path, stream: SampleSource) -> None:
        self._place, self._room = place, room
        stems = [Path(file).stem for file in stream.files]
        self._names = stems if len(set(stems)) == len(stems) else []
        self._numbered: list[Path] = []
        self.shapes: dict[str, set[tuple[int, ...]]] = {}

    def add(self, number: int, outputs: Feeds) -> None:
        """Write one sample's outputs."""
        self._room.mkdir(exist_ok=True)
        path = self._room / f"{self._names[number] if self._names else number}.npz"
        write_npz(path, outputs)
        if not self._names:
            self._numbered.append(path)
        for name, array in outputs.items():
            self.shapes.setdefault(name, set()).add(array.shape)

    def close(self) -> None:
        """Give all numbers the same number of digits, which is known now, and the folder its name."""
        digits = len(str(len(self._numbered) - 1))
        for place, path in enumerate(self._numbered):
            path.rename(self._room / f"{place:0{digits}}.npz")
        self._room.rename(self._place)


def _run(
    chosen: Contender,
    samples: Iterator[CheckedSample],
    expected: int | None,
    writer: _Stacked | _Separate,
    progress: Progress,
) -> tuple[int, float]:
    """The number of samples, and seconds of all runs. Raises ModelError where one fails."""
    count, seconds = 0, 0.0
    with progress.stage(f"run in {chosen.runtime}", expected) as stage:
        runner = chosen.start()
        for sample in samples:
            with running(chosen, sample.name):
                started = time.perf_counter()
                outputs = runner(sample.feeds)
                seconds += time.perf_counter() - started
            writer.add(sample.number, tensors_of(outputs))
            count += 1
            stage.advance(sample.name)
    return count, seconds
