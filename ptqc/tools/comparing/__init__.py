"""`ptqc compare`: models beside each other, in bytes, in time, and in what they answer."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import compress
from pathlib import Path
from typing import Any, Self

import onnx_ir as ir

from ptqc.artifact.folder import GOLDEN, Artifact
from ptqc.artifact.golden import Golden
from ptqc.artifact.results import OutputAgreement
from ptqc.calibration.images import AnyPreprocessing, Preprocessing
from ptqc.calibration.inputs import input_specs, sample_name
from ptqc.calibration.open_batches import OpenBatches
from ptqc.calibration.recording import recorder
from ptqc.calibration.samples import collect
from ptqc.calibration.synthetic import draw
from ptqc.errors import UsageError
from ptqc.evaluation.judge import BEST_SQNR, Judged, judge_pairs
from ptqc.execution.onnxruntime import Feeds, tensors_of
from ptqc.execution.speed import Speed, race, speed_of
from ptqc.execution.tensors import outputs_in_files
from ptqc.frontend.in_memory import Model
from ptqc.kv_cache.form import unpacked_feeds
from ptqc.losses import recognize
from ptqc.tools.comparing.contenders import (
    Contender,
    contenders,
    images_as_compiled,
    of_one_interface,
    running,
    texts_as_compiled,
)
from ptqc.utils.logs import quiet_libraries
from ptqc.utils.machine import busy, load_average
from ptqc.utils.progress import SILENT, Progress
from ptqc.utils.scratch import scratch
from ptqc.utils.stopwatch import processor_ns, wall_ns
from ptqc.utils.text import number, percent, shorten, table

SAMPLES, FEW = 256, 16  # few where samples are drawn, or a runtime may be an emulator
NAMED = 8  # samples whose answer changed
DRAWN = "synthetic samples, on which outputs say little: give real ones with --data DATA"
NAME = 48


@dataclass(frozen=True)
class ComparedModel:
    """What was measured of one model."""

    #: Its path, or that of its artifact.
    model: str
    #: What ran it, with its version.
    runtime: str
    #: Of the model file.
    bytes: int
    #: Share of the first model's bytes.
    bytes_of_first: float
    #: Time of one sample; None in runtimes of others, where models are not timed.
    milliseconds: float | None
    #: How many times as fast as the first model it is: below 1, it is slower.
    speedup: float | None
    #: The range of the speedup over repeated measurements.
    low: float | None
    high: float | None
    #: What is on integers in a runtime of others, in words.
    placement: str | None
    #: Mean divergence of all outputs from those of the first model; None for the first, and where no output is float.
    loss: float | None
    #: Unit of the loss.
    loss_unit: str | None
    #: Least share of predictions with the first model's top class, 0 to 1; None without classes.
    top1_agreement: float | None
    #: Least signal to quantization noise of an output in dB; 300 for equal outputs.
    sqnr_db: float | None
    #: How each output agrees with the first model's; empty where there is no loss.
    outputs: tuple[OutputAgreement, ...]
    #: Names of the samples whose top class is not the first model's.
    changed: tuple[str, ...]

    @classmethod
    def of(
        cls,
        contender: Contender,
        first: Contender,
        speed: Speed | None,
        judged: Judged | None,
        where: str,
        names: Sequence[str],
    ) -> Self:
        """From what was measured. where: it ran, in runtimes of others. names: of the samples."""
        return cls(
            contender.name,
            contender.runtime,
            contender.bytes,
            contender.bytes / first.bytes,
            milliseconds=None if speed is None else speed.compiled_ms,
            speedup=None if speed is None else speed.ratio,
            low=None if speed is None else speed.low,
            high=None if speed is None else speed.high,
            placement=where or None,
            loss=None if judged is None else judged.loss,
            loss_unit=None if judged is None else judged.loss_unit,
            top1_agreement=None if judged is None else judged.agreement,
            sqnr_db=None if judged is None else judged.sqnr,
            outputs=() if judged is None else tuple(OutputAgreement.of(one.to_json()) for one in judged.outputs),
            changed=() if judged is None else tuple(compress(names, judged.differing)),
        )


@dataclass(frozen=True)
class ModelComparison:
    """What was measured of each model."""

    #: A row for each model, in the order in which they were passed.
    models: tuple[ComparedModel, ...]
    #: Of each run.
    threads: int
    #: What the models ran on, in words.
    samples: str
    #: Load average of the machine.
    load_average: float
    #: What to look at, such as images that are not prepared as for the compile.
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The document of `--json`: milliseconds of one sample, and ratios to the first model."""
        return asdict(self)

    def __str__(self) -> str:
        speeds, answers = ("ms", "times as fast", "range"), ("same top class", "loss", "SQNR dB")
        heading: tuple[str, ...] = ("model", "runs in", "bytes", "vs. first", *speeds, *answers)
        rows = [_cells(model, is_first=place == 0) for place, model in enumerate(self.models)]
        if any(model.placement for model in self.models):
            heading = (*heading, "on integers")
            rows = [(*cells, model.placement or "") for cells, model in zip(rows, self.models, strict=True)]
        whose = (
            "of the processor's time on one thread" if self.threads == 1 else f"that pass, with {self.threads} threads"
        )
        result = [table(heading, rows), "", f"ms {whose}, of one sample, in turns; compared on {self.samples}"]
        result += [
            f"another top class in {model.model}: {_first(model.changed)}" for model in self.models if model.changed
        ]
        if machine := busy(self.load_average):
            result.append(f"{machine}: {self._trust}")
        result += [f"WARNING: {note}" for note in self.notes]
        return "\n".join(result)

    @property
    def _trust(self) -> str:
        return "compare the ratios, not the ms" if self.threads == 1 else "run it again where nothing else runs"


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _cells(model: ComparedModel, *, is_first: bool) -> tuple[str, ...]:
    times, speedup, low, high = model.milliseconds, model.speedup, model.low, model.high
    loss, same, sqnr = model.loss, model.top1_agreement, model.sqnr_db
    return (
        shorten(model.model, NAME),
        model.runtime,
        f"{model.bytes:,}",
        percent(model.bytes_of_first),
        "" if times is None else number(times),
        "" if speedup is None else number(speedup),
        "" if is_first or low is None or high is None else f"{number(low)} to {number(high)}",
        "" if same is None else percent(same),
        "" if loss is None else f"{loss:.3g}",
        "" if sqnr is None else "equal" if sqnr == BEST_SQNR else f"{sqnr:.1f}",
    )


@quiet_libraries()
def compare(
    *models: Model,
    data: object = None,
    samples: int | None = None,
    threads: int = 1,
    preprocessing: AnyPreprocessing | None = None,
    runtimes: Sequence[str] = (),
    progress: Progress = SILENT,
) -> ModelComparison:
    """Compare bytes, times and outputs of models with those of the first.

    Args:
        *models: ONNX files, models in memory, and artifacts: of these the
            file and, if one runs here, the native library.
        data: Samples as for `ptqc.compile`; default: the golden
            samples of the first artifact, otherwise synthetic ones.
        samples: The most samples to run; default: 256, or 16 where they are
            drawn or `runtimes` are given.
        threads: Threads of a run. On one thread, time that other programs
            take is left out.
        preprocessing: How image files become inputs, or the name of a preset.
        runtimes: Run artifacts in these as well: "litert", "openvino", "qnn".
        progress: Shows progress, such as `ptqc.Lines()`.

    Returns:
        A row for each model with bytes, milliseconds, share of equal top
        classes (0 to 1), divergence and SQNR in dB; `print` it.

    Raises:
        UsageError: The models differ in inputs or outputs.
        TargetError: A runtime is not installed or refuses the file.

    Example:
        >>> print(ptqc.compare("model.onnx", "out", data="images/"))
    """
    if threads < 1:
        raise UsageError(f"threads = {threads}; expected a positive number")
    load = load_average()
    ways = (contenders(model, threads, recording=True, runtimes=runtimes) for model in models)
    result = [contender for several in ways for contender in several]
    if len(result) < 2:
        raise UsageError(
            "there is nothing to compare: give two models or more, ONNX files or folders of `ptqc compile`"
        )
    result = of_one_interface(result)
    with scratch() as folder:
        prepared, notes = images_as_compiled(preprocessing, result, data)
        data, more = texts_as_compiled(data, result)
        usual = FEW if runtimes or data is None else SAMPLES
        most = usual if samples is None else samples
        feeds, names, described = _samples(result, data, most, prepared, Path(folder))
        pairs, placements = _outputs(result, feeds, progress)
        timed = [one for one in result if one.run_all is None]
        with progress.stage("compare speeds"):
            times = race([one.starter(feeds[0]) for one in timed], processor_ns if threads == 1 else wall_ns)
        judged = _judged(result[0].model, feeds, pairs)
    assert times is not None  # there was no deadline
    speeds = {id(one): speed_of(times[:, 0], times[:, place]) for place, one in enumerate(timed)}
    compared = [
        ComparedModel.of(one, result[0], speeds.get(id(one)), judged[place], placements[place], names)
        for place, one in enumerate(result)
    ]
    return ModelComparison(tuple(compared), threads, described, load, (*notes, *more))


def _samples(
    contenders: Sequence[Contender], data: object, most: int, preprocessing: Preprocessing | None, folder: Path
) -> tuple[Sequence[Feeds], list[str], str]:
    """Samples, the name of each, and what they are."""
    if data is not None:
        model = contenders[0].model
        feeds = collect(data, input_specs(model), folder, most, preprocessing, rows=OpenBatches(model))
        return _recorded(model, feeds), feeds.names, f"{len(feeds)} samples"
    for one, artifact in ((one, one.artifact) for one in contenders if one.artifact is not None):
        golden = [unpacked_feeds(feeds, one.unpacked) for feeds in _golden(artifact)]
        return golden, [*map(sample_name, range(len(golden)))], f"{len(golden)} golden samples of {artifact.folder}"
    drawn = list(draw(contenders[0].model, most, 0, {}))
    return _recorded(contenders[0].model, drawn), [*map(sample_name, range(len(drawn)))], DRAWN


def _recorded(model: ir.Model, samples: Sequence[Feeds]) -> Sequence[Feeds]:
    """The samples with what the model draws for each, which all models then get."""
    more = recorder(model)
    return samples if more is None else [{**feeds, **more(feeds)} for feeds in samples]


def _golden(artifact: Artifact) -> list[Feeds]:
    return list(Golden.read(artifact.folder / GOLDEN).inputs)


def _outputs(
    contenders: Sequence[Contender], feeds: Sequence[Feeds], progress: Progress
) -> tuple[list[Sequence[Feeds]], list[str]]:
    """What each makes of each sample, and where its layers are. Raises UsageError without an output of the first."""
    outputs, placements = list[Sequence[Feeds]](), list[str]()
    with progress.stage("compare outputs", len(contenders)) as stage:
        for one in contenders:
            with running(one):
                run = None if one.run_all is None else one.run_all(feeds)
                outputs.append(_run(one, feeds) if run is None else run.outputs)
            placements.append("" if run is None else str(run.placement))
            if missing := set(outputs[0][0]) - set(outputs[-1][0]):
                raise UsageError(f"{one.name} has no output {sorted(missing)[0]!r}, which {contenders[0].name} has")
            stage.advance(one.name)
    return outputs, placements


def _run(one: Contender, feeds: Sequence[Feeds]) -> list[Feeds]:
    run = one.start()
    return outputs_in_files(tensors_of(run(sample)) for sample in feeds)


def _judged(model: ir.Model, feeds: Sequence[Feeds], outputs: Sequence[Sequence[Feeds]]) -> list[Judged | None]:
    """How the outputs of each agree with the first's."""
    real = outputs[0]
    kinds = recognize(model, feeds[0], list(real))
    if not kinds:
        return [None for _ in outputs]
    judged = [judge_pairs(kinds, list(zip(real, other, strict=True))) for other in outputs[1:]]
    return [None, *judged]
