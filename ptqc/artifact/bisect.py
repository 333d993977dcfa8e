"""Comparing an artifact's native libraries with its ONNX file afterwards, layer by layer."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from ptqc.artifact.folder import Artifact, legible, load, other_kind
from ptqc.artifact.names import OwnNames
from ptqc.calibration import texts
from ptqc.calibration.images import AnyPreprocessing, Preprocessing
from ptqc.calibration.inputs import input_specs
from ptqc.calibration.recording import recorder
from ptqc.calibration.samples import collect
from ptqc.codegen.program.inputs import Extent, edge_runs, edges, other_runs
from ptqc.codegen.program.listing import Listing
from ptqc.codegen.program.verify import Loaded, Runnable, TensorComparison, outcomes
from ptqc.codegen.targets import emulate
from ptqc.errors import MALFORMED, TargetError
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.ir import zipmaps
from ptqc.ir.recorded import remember, with_inputs
from ptqc.runtime.cuda import check
from ptqc.runtime.cuda_library import NAME as GPU
from ptqc.runtime.interface import KERNELS
from ptqc.utils.logs import quiet_libraries
from ptqc.utils.scratch import scratch
from ptqc.utils.text import differences_end_to_end

SAMPLES = 8
# What is read of the list of a library's kernels.
KINDS = {"libraries": dict, "names": dict, "seen": dict, "by_run": bool}
EMULATED = "cuda, in the emulator of PTX"


@dataclass
class Bisection:
    """What was found. order: what kernels make, in order. libraries: their instruction sets. runs: their inputs.

    tensors: compared ones. wrong: elements that differ, and problems: how, by what the kernel makes. chained: integers
    that differ end to end though no kernel need do so. rounded: those that float parts round otherwise, from which all
    of `chained` follow. is_whole: all samples of each run, and end to end; else kernel by kernel on the first one where
    an emulator ran it. cropped: calls that computed a part of their output. outputs: of the whole library by run, where
    it ran in an emulator. names: what the model calls what kernels make.
    """

    order: Sequence[str]
    libraries: Sequence[str]
    runs: list[str] = field(default_factory=list)
    tensors: set[str] = field(default_factory=set)
    integers: int = 0
    reals: int = 0
    chained: int = 0
    rounded: int = 0
    wrong: dict[str, int] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    is_whole: bool = True
    cropped: Mapping[str, float] = field(default_factory=dict)
    outputs: Mapping[str, Feeds] = field(default_factory=dict)
    names: OwnNames = field(default_factory=OwnNames)

    @property
    def first(self) -> str | None:
        """What the earliest kernel that differs makes."""
        return next((name for name in self.order if name in self.wrong), None)

    def add(self, outcome: TensorComparison, run: str) -> None:
        """Count a tensor of one run."""
        name = outcome.call.output
        self.tensors.add(name)
        self.integers += 0 if outcome.is_real else outcome.elements
        self.reals += outcome.elements if outcome.is_real else 0
        self.chained += outcome.chained
        self.rounded += outcome.rounded
        if outcome.problem:
            self.wrong[name] = self.wrong.get(name, 0) + outcome.wrong
            self.problems.setdefault(name, f"{outcome.problem} (input: {run})")

    def joined(self, other: "Bisection") -> "Bisection":
        """What was found in the same runs of this target's libraries and of another's."""
        return Bisection(
            list(dict.fromkeys([*self.order, *other.order])),
            [*self.libraries, *other.libraries],
            self.runs,
            self.tensors | other.tensors,
            self.integers + other.integers,
            self.reals + other.reals,
            self.chained + other.chained,
            self.rounded + other.rounded,
            dict(Counter(self.wrong) + Counter(other.wrong)),
            {**other.problems, **self.problems},
            self.is_whole and other.is_whole,
            {**self.cropped, **other.cropped},
            {**self.outputs, **other.outputs},
            replace(self.names, mark=self.names.mark or other.names.mark),
        )

    def to_json(self) -> dict[str, Any]:
        """The document of `--json`.

        `first` is null where no kernel differs; `different_end_to_end` and `rounded_end_to_end` are where nothing ran
        end to end.
        """
        return {
            "first": self.first,
            "different": [
                {
                    "name": self.names.of_kernel(name),
                    "value": name,
                    "elements": self.wrong[name],
                    "problem": self.problems[name],
                }
                for name in self.order
                if name in self.wrong
            ],
            "libraries": list(self.libraries),
            "runs": self.runs,
            "tensors": len(self.tensors),
            "integers": self.integers,
            "floats": self.reals,
            "different_end_to_end": self.chained if self.is_whole else None,
            "rounded_end_to_end": self.rounded if self.is_whole else None,
            "is_whole": self.is_whole,
            "cropped": dict(self.cropped),
        }

    @property
    def _left_out(self) -> str:
        alone = "" if self.is_whole else ", kernel by kernel on the first sample of each"
        return alone + (f"; of {len(self.cropped)} large kernels a part" if self.cropped else "")

    def __str__(self) -> str:
        compared = (
            f"{len(self.tensors)} tensors, {self.integers:,} integers and {self.reals:,} floats "
            f"in {len(self.runs)} runs ({', '.join(self.runs)}) of the library for {', '.join(self.libraries)}"
        ) + self._left_out
        if self.first is None:
            after = f"; {differences_end_to_end(self.chained, self.rounded)}" if self.chained else ""
            return f"no kernel differs from the ONNX file: {compared}{after}"
        own = self.names.of_kernel
        counts = ", ".join(f"{own(name)} ({self.wrong[name]:,})" for name in self.order if name in self.wrong)
        problem = own(self.first) + self.problems[self.first].removeprefix(self.first)
        return f"the first kernel that differs makes {problem}; of {compared}, these differ: {counts}"


@quiet_libraries()
def bisect(
    folder: str | PathLike[str],
    *,
    data: object = None,
    samples: int = SAMPLES,
    preprocessing: AnyPreprocessing | None = None,
) -> Bisection:
    """Compare every kernel of the native libraries with ONNX Runtime.

    Each kernel runs on ONNX Runtime's values of `model.onnx`, so that the
    first one that computes anything else is found. Inputs are all at the
    lowest value seen at compile time, all at the highest, zero, and random;
    and the samples of `data`, if given. A CUDA library runs on the
    first GPU, or in the emulator if there is none.

    Args:
        folder: An artifact with a native library.
        data: Samples as for `ptqc.compile`.
        samples: The most samples of `data` to run.
        preprocessing: How image files become inputs, or the name of a preset.

    Returns:
        The kernels that differ; `print` it.

    Raises:
        TargetError: The artifact has no library, or none that runs here.

    Example:
        >>> print(ptqc.bisect("out", data="images/"))
    """
    artifact = load(folder)
    data = texts.with_tokenizer(data, artifact.texts)
    result = list(_sample_feeds(artifact, data, samples, Preprocessing.of(preprocessing) or artifact.preprocessing))
    return reduce(Bisection.joined, [_of_target(artifact, target, result) for target in compared_targets(artifact)])


def compared_targets(artifact: Artifact) -> list[str]:
    """The targets whose libraries are compared. Raises TargetError when there is none."""
    targets = [name for name in (artifact.runnable, GPU) if name in artifact.targets]
    if not targets:
        raise TargetError(f"{artifact.folder} has no native library; compile with --target cpu or --target {GPU}")
    return targets


def _of_target(artifact: Artifact, target: str, samples: Sequence[tuple[str, Feeds]]) -> Bisection:
    """What is found of the libraries of one target. Raises TargetError where none of them runs here."""
    opened = _runnable(artifact, target)
    room = artifact.folder / target
    document = read_kernels(room / KERNELS)
    names = OwnNames.of(artifact, document)
    runner, seen = Runner(as_compared(artifact), list(document["names"].values())), seen_inputs(document)
    taken = ((run, of_one_run(document, feeds)) for run, feeds in samples)
    others = other_runs(runner, dict(edges(seen))["random"], document.get("other_shapes", {}))
    sample_runs = ((run, x, runner.run(x)) for run, x in taken)
    runs = _values(document, chain(edge_runs(runner, seen), others, sample_runs))
    if not opened:
        return replace(_emulated(room, document, runs), names=names)
    libraries = {name: Loaded(_listing(document, name), library) for name, library in opened.items()}
    result = replace(_none_yet(document, [_called(name) for name in libraries]), names=names)
    for run, values in runs:
        result.runs.append(run)
        for name, loaded in libraries.items():
            if not loaded.listing.takes(values):
                continue
            for outcome in outcomes(loaded, values, {}):
                result.add(outcome, f"{run}, library: {_called(name)}")
    return result


def _runnable(artifact: Artifact, target: str) -> Mapping[str, Runnable]:
    """Every library of a target that this machine can run, the best first; none where CUDA has no GPU for it.

    Raises TargetError when there is none for processors.
    """
    if target == GPU:
        try:
            check(0)
        except TargetError:
            return {}
        return {GPU: artifact.native(device=GPU)}
    best = artifact.native()
    others = (artifact.native(isa=isa) for isa in best.interface.runnable if isa != best.isa)
    return {library.isa: library for library in (best, *others)}


def _called(library: str) -> str:
    return f"{GPU}:0" if library == GPU else library


def _values(document: Mapping[str, Any], runs: Iterable[tuple[str, Feeds, Feeds]]) -> Iterator[tuple[str, Feeds]]:
    """What ONNX Runtime was given and computed, by names in the lowered graph."""
    for run, feeds, values in runs:
        yield run, {**feeds, **{name: values[short] for name, short in document["names"].items()}}


def _listing(document: Mapping[str, Any], library: str) -> Listing:
    with legible(KERNELS):
        return Listing.from_json(document["libraries"][library])


def _none_yet(document: Mapping[str, Any], names: Sequence[str]) -> Bisection:
    listings = (_listing(document, name) for name in document["libraries"])
    return Bisection(list(dict.fromkeys(call.output for listing in listings for call in listing.calls)), names)


def _emulated(room: Path, document: Mapping[str, Any], runs: Iterable[tuple[str, Feeds]]) -> Bisection:
    """Compare a CUDA library where there is no GPU. Raises TargetError where the emulator does not run either."""
    result, listing = _none_yet(document, [EMULATED]), _listing(document, GPU)

    def values() -> Iterator[Feeds]:
        for run, feeds in runs:
            result.runs.append(run)
            yield feeds

    emulation = emulate(GPU, room, listing, values())
    for run, results in zip(result.runs, emulation.outcomes, strict=True):
        for outcome in results:
            result.add(outcome, run)
    if not emulation.outputs:
        return replace(result, is_whole=False, cropped=emulation.cropped)
    return replace(result, outputs=dict(zip(result.runs, emulation.outputs, strict=True)))


def of_one_run(document: Mapping[str, Any], feeds: Feeds) -> Feeds:
    """A batch, cut to the number of samples that one run of the library takes where it was built run by run."""
    if not document["by_run"]:
        return feeds
    seen = seen_inputs(document)
    return {name: value[: seen[name].shape[0]] if value.ndim else value for name, value in feeds.items()}


def read_kernels(path: Path) -> Mapping[str, Any]:
    """Read the list of a library's kernels. Raises TargetError when it is not there."""
    try:
        document: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if (key := other_kind(document, KINDS)) is not None:
            raise ValueError(f"it has no {key or 'object'}")
    except (OSError, *MALFORMED) as error:
        raise TargetError(f"{path} does not list the kernels of a native library: {error}; compile again") from error
    return document


def seen_inputs(document: Mapping[str, Any]) -> dict[str, Extent]:
    """What the inputs were like at compile time."""
    with legible(KERNELS):
        return {name: Extent(**{**entry, "shape": tuple(entry["shape"])}) for name, entry in document["seen"].items()}


def as_compared(artifact: Artifact) -> Path | onnx.ModelProto:
    """The file as its libraries were compared with it: what it draws is read from inputs."""
    recorded = artifact.manifest.get("recorded", {})
    return with_recorded(artifact, onnx.load(artifact.path)) if recorded else artifact.path


def with_recorded(artifact: Artifact, proto: onnx.ModelProto) -> onnx.ModelProto:
    """A file of this artifact that reads what it draws from inputs."""
    with legible(artifact.folder):
        return with_inputs(proto, artifact.manifest.get("recorded", {}))


def _sample_feeds(
    artifact: Artifact, data: object, samples: int, preprocessing: Preprocessing | None
) -> Iterator[tuple[str, Feeds]]:
    if data is None:
        return
    model, more = zipmaps.load(artifact.path), None
    if stand_ins := artifact.manifest.get("recorded", {}):
        model = ir.from_proto(with_recorded(artifact, onnx.load(artifact.path)))
        first = data[0] if isinstance(data, list) and data else {}
        if not stand_ins.keys() <= first.keys():  # samples of a user, who does not know what was drawn
            remember(model, stand_ins)
            more = recorder(model)
    with scratch() as folder:
        collected = collect(data, input_specs(model), Path(folder), samples, preprocessing)
        for record, feeds in zip(collected.records, collected, strict=True):
            yield f"sample {record.number}", feeds if more is None else {**feeds, **more(feeds)}
