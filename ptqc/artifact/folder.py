"""The output folder: written whole or not at all, opened with its checks, run, summarized."""

import ctypes
import hashlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, overload

import numpy as np

from ptqc.artifact.expanded import EXPANDED, ExpandedModel
from ptqc.artifact.results import BudgetResult, Latency, OutputAgreement, Score, budgets_of
from ptqc.errors import MALFORMED, UNREADABLE, IntegrityError, Interrupted, TargetError, UsageError
from ptqc.notes import UNFIT, Level, Note
from ptqc.utils.arguments import path_of
from ptqc.utils.locks import Claim, InUse
from ptqc.utils.store import file_digest

if TYPE_CHECKING:
    import onnxruntime as ort

    from ptqc.calibration.images import Preprocessing
    from ptqc.calibration.sources import TextSettings
    from ptqc.evaluation.detection.detector import Detector
    from ptqc.execution.feeds import CheckedSession
    from ptqc.runtime.cuda_library import CudaLibrary
    from ptqc.runtime.library import Library


class Session(Protocol):
    """An `onnxruntime.InferenceSession`, which has no types of its own."""

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, np.ndarray], run_options: Any = None
    ) -> list[Any]:
        """Values of the named outputs, or of all."""

    def get_inputs(self) -> list[Any]:
        """Name, type and shape of each input."""

    def get_outputs(self) -> list[Any]:
        """Name, type and shape of each output."""

    def __getattr__(self, name: str) -> Any:
        """All else that it has."""


REMEDY = "copy the folder again, or compile"
MANIFEST, MODEL, PLAN, SENSITIVITY = "manifest.json", "model.onnx", "plan.json", "sensitivity.json"
REPORT, RUN, GOLDEN, SWEEP = "report.html", "run.json", "golden.safetensors", "sweep.json"
CHANGED = "most_changed.json"
# What commands read of a manifest: of every artifact and expanded model, of every artifact, and where it is there.
OF_EACH: Mapping[str, Any] = {
    "source": {"name": str, "bytes": int, "sha256": str},
    "file": {"bytes": int},
    "cpu": {"session_option_without_vnni": dict},
    "golden": {"distances": dict},
}
OF_ARTIFACT: Mapping[str, Any] = {
    "calibration": dict,
    "options": dict,
    "allocation": dict,
    "weights_by_format": dict,
    "float_operators": dict,
    "verification": {"kernels_compared": int, "integer_nodes": int},
    "results": dict,
    "measurements": str,
    "notes": list,
    "activation_loss": int | float,
}
OPTIONAL: Mapping[str, Any] = {
    **dict.fromkeys(("maps", "names", "labels", "recorded", "targets", "rounded_activations"), dict),
    **dict.fromkeys(("preprocessing", "texts", "detector"), dict | None),
    **dict.fromkeys(("latency", "memory", "loss_budget", "flash", "ram", "caches"), dict | None),
}
# renameat2(2): swap two paths in one step.
AT_FDCWD, RENAME_EXCHANGE = -100, 2


@dataclass(frozen=True)
class Artifact:
    """A compiled model in its folder; pass it wherever a folder is expected.

    `ptqc.compile`, `ptqc.resolve` and `ptqc.load` return one.

    Args:
        folder: The folder that a compile wrote.
    """

    folder: Path

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        from ptqc.artifact.report.verdict import in_short

        try:
            return f"<ptqc.Artifact {self.folder}: {in_short(self.manifest)}>"
        except (UsageError, *MALFORMED):
            return f"<ptqc.Artifact {self.folder}: not readable>"

    def _repr_html_(self) -> str:
        from ptqc.artifact.report.page import card
        from ptqc.artifact.report.rows import ReportFacts

        return card(ReportFacts(self.manifest, {}, {}, self.times))

    @property
    def path(self) -> Path:
        """The packed ONNX file: ship this one. `expand` turns it into one that loads faster."""
        return self.folder / MODEL

    @property
    def size(self) -> int:
        """Bytes of the packed ONNX file."""
        return int(self.manifest["file"]["bytes"])

    @property
    def budgets(self) -> tuple[BudgetResult, ...]:
        """The budgets of the compile, and whether the file meets each."""
        return budgets_of(self.manifest)

    @property
    def outputs(self) -> tuple[OutputAgreement, ...]:
        """How each output agrees with the float model's on held-back samples; empty for very old artifacts."""
        return tuple(OutputAgreement.of(output) for output in self.manifest["results"].get("outputs", ()))

    @property
    def score(self) -> Score | None:
        """Scores of both models; None if neither `labels` nor `evaluate` was given."""
        return Score.of(self.manifest["results"])

    @property
    def latency(self) -> Latency | None:
        """Milliseconds of both models in ONNX Runtime; None if they were not measured."""
        return Latency.of(self.times)

    @property
    def warnings(self) -> tuple[Note, ...]:
        """What to look at before shipping; a reason why the file is not fit for use comes first."""
        notes = [Note(**note) for note in self.manifest["notes"] if note["level"] == Level.WARNING]
        return tuple(sorted(notes, key=lambda note: note.step != UNFIT))

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        """Everything reproducible: hashes, versions, options, results, notes. Its keys are in the reference."""
        return dict(self._read(MANIFEST))

    @cached_property
    def plan(self) -> Mapping[str, Any]:
        """The format of each weight and activation (see `ptqc.ir.plan`)."""
        return dict(self._read(PLAN))

    @cached_property
    def sensitivity(self) -> Mapping[str, Any]:
        """Bytes and predicted divergence of every format that was tried for each weight."""
        return dict(self._read(SENSITIVITY))

    @cached_property
    def times(self) -> Mapping[str, Any]:
        """Times, date and host of the compile, which differ from run to run."""
        return dict(self._read(RUN))

    @cached_property
    def most_changed(self) -> Mapping[str, Any] | None:
        """The held-back samples with the largest divergence; None for artifacts of earlier versions."""
        return dict(self._read(CHANGED)) if CHANGED in self.manifest["files"] else None

    @property
    def preprocessing(self) -> "Preprocessing | None":
        """How the compile prepared images; None if it was given arrays, and for artifacts of earlier versions."""
        from ptqc.calibration.images import Preprocessing

        result = self.manifest.get("preprocessing")
        with legible(self.folder):
            return None if result is None else Preprocessing.from_json(result)

    @property
    def texts(self) -> "TextSettings | None":
        """How the compile read texts; None if it was given none, and for artifacts of earlier versions."""
        from ptqc.calibration.sources import TextSettings

        result = self.manifest.get("texts")
        with legible(self.folder):
            return None if result is None else TextSettings(**result)

    @property
    def detector(self) -> "Detector | None":
        """The `detector` of the compile; None if it had none."""
        from ptqc.evaluation.detection.detector import Detector

        result = self.manifest.get("detector")
        with legible(self.folder):
            return None if result is None else Detector.from_json(result)

    def session(self, options: "ort.SessionOptions | None" = None) -> Session:
        """Open the file in ONNX Runtime on the CPU.

        Args:
            options: Session options of your own. On processors without VNNI, add the entries of
                `manifest["cpu"]["session_option_without_vnni"]`, so that 8-bit weights are accumulated exactly;
                without options of your own, this is done for you.

        Returns:
            A session; threads may share it.
        """
        import onnxruntime as ort

        from ptqc.execution.saturation import saturates

        if options is None and saturates():
            options = ort.SessionOptions()
            for name, value in self.manifest["cpu"]["session_option_without_vnni"].items():
                options.add_session_config_entry(name, value)
        session: Session = ort.InferenceSession(str(self.path), options, providers=["CPUExecutionProvider"])
        return session

    @cached_property
    def _session(self) -> "CheckedSession":
        from ptqc.execution.feeds import CheckedSession

        return CheckedSession(self.session(), str(self.path))

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the targets that files were built for, each in a folder of its name: "cpu", "cuda", "c", "qdq"."""
        return tuple(name for name in self.manifest.get("targets", {}) if (self.folder / name).is_dir())

    @cached_property
    def runnable(self) -> str:
        """The first target whose libraries ptqc runs; "" if there is none."""
        from ptqc.codegen.targets import can_load

        return next(filter(can_load, self.targets), "")

    @overload
    def native(self, threads: int = 0, isa: str = "") -> "Library": ...

    @overload
    def native(self, *, device: str, graph: bool = False) -> "CudaLibrary": ...

    def native(self, threads: int = 0, isa: str = "", device: str = "", graph: bool = False) -> "Library | CudaLibrary":
        """Load the best native library for this machine.

        Args:
            threads: Threads for each thread that calls; 0: one for each core.
            isa: An instruction set of the artifact's libraries, in place of the best one that runs here.
            device: A GPU such as "cuda:0", to load the CUDA library instead.
            graph: With a device: run by CUDA graphs, see `ptqc.runtime.cuda_library.CudaLibrary`.

        Returns:
            A library; threads may share it.

        Raises:
            TargetError: The artifact has no library, or none that runs on this machine.
        """
        from ptqc.codegen.targets import load as load_library

        if device and (threads or isa):
            raise UsageError("threads and isa are of libraries for processors: leave them out where a device is given")
        if device:
            return self._on_gpu(device, graph)
        if graph:
            raise UsageError("graph is of libraries for GPUs: give a device, such as cuda:0")
        if not self.runnable:
            raise TargetError(f"{self.folder} has no native library; compile with --target cpu")
        _check_listed(self, self.runnable)
        return load_library(self.runnable, self.folder / self.runnable, threads, isa)

    def _on_gpu(self, device: str, graph: bool) -> "CudaLibrary":
        from ptqc.runtime.cuda_library import NAME, CudaLibrary

        if (number := re.fullmatch(r"cuda(?::(\d+))?", device)) is None:
            raise UsageError(f"device is {device!r}; expected cuda, or cuda:N for the N-th GPU")
        if NAME not in self.targets:
            raise TargetError(f"{self.folder} has no CUDA library; compile with --target {NAME}")
        _check_listed(self, NAME)
        return CudaLibrary.open(self.folder / NAME, int(number[1] or 0), graph=graph)

    @cached_property
    def _on_gpus(self) -> "dict[str, CudaLibrary]":
        return {}

    @cached_property
    def _library(self) -> "Library":
        return self.native()

    def run(self, feeds: Mapping[str, Any], device: str = "") -> dict[str, Any]:
        """Run the native library if the artifact has one, otherwise ONNX Runtime.

        Args:
            feeds: One array for each input, by name, with the shape and dtype of the model's input: axis 0 is the
                batch, of any length unless the model fixes it.
            device: A GPU such as "cuda:0" that runs the CUDA library instead, on arrays or on tensors in its memory
                (see `ptqc.runtime.cuda_library.CudaLibrary.run`).

        Returns:
            One array for each output, by name, with the shape and dtype of the float model's; for a model that ends
            in a ZipMap, a list of maps from class labels to scores.

        Raises:
            UsageError: An input has another name, dtype, rank or size than the model's.
        """
        if device:
            if device not in self._on_gpus:
                self._on_gpus.setdefault(device, self.native(device=device))
            return self._zipped(self._on_gpus[device].run(feeds))
        if self.runnable:
            return self._zipped(self._library.run(feeds))
        return self._session.run(feeds)

    def _zipped(self, values: Mapping[str, Any]) -> dict[str, Any]:
        maps = {name: map_ for name, map_ in self.manifest.get("maps", {}).items() if _is_array(values[name])}
        return {name: _zipped(array, maps[name]) if name in maps else array for name, array in values.items()}

    def expand(self, output: str | PathLike[str], *, force: bool = False) -> ExpandedModel:
        """Write the file with its weights unpacked, which loads faster: see `ptqc.expand`."""
        # By name, since that module opens artifacts.
        expanding = import_module("ptqc.artifact.expand")
        result: ExpandedModel = expanding.expand(self, output=output, force=force)
        return result

    def to_json(self) -> dict[str, Any]:
        """The document of `--json`: folder, budgets, manifest and times."""
        return {
            "folder": str(self.folder),
            "path": str(self.path),
            "budgets": [asdict(budget) for budget in self.budgets],
            "manifest": self.manifest,
            "times": self.times,
        }

    def __str__(self) -> str:
        return self.summary()

    def summary(self) -> str:
        """Verdict, size, agreement, score and latency as text of a few lines, as the command line prints it."""
        from ptqc.artifact.report.summary import summarize

        return summarize(self.manifest, self.times)

    def _read(self, name: str) -> Any:
        try:
            result = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except UNREADABLE as error:
            raise UsageError(f"{self.folder} is not a folder that `ptqc compile` wrote: {name}: {error}") from error
        if not isinstance(result, dict):
            raise UsageError(f"{self.folder} is not a folder that `ptqc compile` wrote: {name} holds no object")
        return result


@contextmanager
def legible(what: object) -> Iterator[None]:
    """Read what is in documents of an artifact. Raises IntegrityError where they are not as ptqc writes them."""
    try:
        yield
    except (StopIteration, RuntimeError, *MALFORMED) as error:
        message = f"{what} is not as `ptqc compile` writes it: {type(error).__name__}: {error}; {REMEDY}"
        raise IntegrityError(message) from error


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray)


def _zipped(scores: np.ndarray, labels: Sequence[int | str]) -> list[dict[int | str, float]]:
    """What a ZipMap makes of scores, (N, classes) or (classes,): ONNX Runtime sorts by label."""
    return [dict(sorted(zip(labels, row.tolist(), strict=True))) for row in np.atleast_2d(scores)]


def load(folder: str | PathLike[str]) -> Artifact:
    """Open an artifact after checking the hash of each of its files.

    Args:
        folder: The folder that `ptqc.compile` wrote; it may be on another
            machine than the one that compiled.

    Returns:
        The artifact.

    Raises:
        UsageError: The folder is no artifact.
        IntegrityError: A file was changed, is missing, or was added.

    Example:
        >>> ptqc.load("out").run({"input": x})
    """
    artifact = open_checked(folder)
    if EXPANDED in artifact.manifest:
        raise UsageError(
            f"{folder} was written by `ptqc expand`: give the folder that `ptqc compile` wrote, or {artifact.path}"
        )
    return artifact


def open_checked(folder: str | PathLike[str]) -> Artifact:
    """Open what `ptqc compile` or `ptqc expand` wrote. Raises UsageError and IntegrityError as `load` does."""
    from ptqc.codegen.targets import names

    artifact = Artifact(path_of("folder", folder))
    if not (artifact.folder / MANIFEST).is_file():
        raise UsageError(f"{folder} is not a folder that `ptqc compile` wrote: it has no {MANIFEST}")
    if not _is_ours(artifact.folder):
        raise UsageError(f"{folder} is not a folder that `ptqc compile` wrote: its {MANIFEST} is another program's")
    for name, expected in artifact.manifest["files"].items():
        _check_file(artifact.folder, name, expected)
    _check_manifest(artifact)
    for target in names():
        _check_listed(artifact, target)
    return artifact


def _check_manifest(artifact: Artifact) -> None:
    manifest = artifact.manifest
    needed = OF_EACH if EXPANDED in manifest else {**OF_EACH, **OF_ARTIFACT}
    present = {key: kind for key, kind in OPTIONAL.items() if key in manifest}
    if (target := manifest.get("target")) is not None:
        present["target"] = {"name": str, "options": dict}
        name = target.get("name") if isinstance(target, dict) else None
        present["targets"] = {name: dict} if isinstance(name, str) else dict
    if (key := other_kind(manifest, {**needed, **present})) is not None:
        raise IntegrityError(f"the {MANIFEST} of {artifact.folder} has no {key} as ptqc writes it; {REMEDY}")


def other_kind(document: object, kinds: Mapping[str, Any]) -> str | None:
    """The first key that is missing or of another kind, behind those that lead to it."""
    if not isinstance(document, dict):
        return ""
    for key, kind in kinds.items():
        value = document.get(key)
        if not isinstance(kind, Mapping):
            if not isinstance(value, kind):
                return key
        elif (inner := other_kind(value, kind)) is not None:
            return f"{key}.{inner}".removesuffix(".")
    return None


def _check_listed(artifact: Artifact, target: str) -> None:
    """Raises IntegrityError where a target's folder has a file that the manifest does not list."""
    for path in (artifact.folder / target).glob("*"):
        if f"{target}/{path.name}" not in artifact.manifest["files"]:
            raise IntegrityError(f"{path} is not a file that `ptqc compile` wrote, and would be run: remove it")


def artifact_of(file: Path) -> Artifact | None:
    """The artifact in whose folder an ONNX file lies, if it is the one that was compiled; None for any other file."""
    artifact = Artifact(file.parent)
    if file.name != MODEL or not (file.parent / MANIFEST).is_file() or not _is_ours(file.parent):
        return None
    return artifact if artifact.manifest["files"].get(MODEL) == file_digest(file) else None


def _check_file(folder: Path, name: str, expected: str) -> None:
    path = folder / name
    try:
        is_inside, is_there = path.resolve().is_relative_to(folder.resolve()), path.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # no name of a file, or links that lead in a circle
        raise IntegrityError(f"the {MANIFEST} of {folder} lists {name!r}: {error}; {REMEDY}") from error
    if not is_inside:
        raise IntegrityError(f"the {MANIFEST} of {folder} lists {name!r}, which lies outside; {REMEDY}")
    if not is_there:
        raise IntegrityError(f"{folder} is incomplete: {name} is missing; {REMEDY}")
    if file_digest(path) != expected:
        raise IntegrityError(f"{path} was changed after it was compiled (its SHA-256 differs); {REMEDY}")


def check_output(folder: Path, force: bool) -> None:
    """Refuse an output folder that exists or cannot be made, before any work is done. Raises UsageError."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"the output {folder} is a file; give a folder with -o")
    if folder.is_dir() and any(folder.iterdir()) and not _is_ours(folder):
        raise UsageError(
            f"the output folder {folder} exists, and was not written by ptqc (it has no {MANIFEST} of ptqc); give "
            "another one with -o (--force replaces artifacts only)"
        )
    if folder.exists() and not force:
        raise UsageError(f"the output folder {folder} exists; give another one with -o, or --force to replace it")
    above = next(path for path in folder.resolve().parents if path.exists())
    if not above.is_dir():
        raise UsageError(f"the output folder {folder} cannot be made: {above} is a file")
    if not os.access(above, os.W_OK):
        raise UsageError(f"the output folder {folder} cannot be made: {above} is not writable")


@contextmanager
def reserved(folder: Path) -> Iterator[None]:
    """Hold the place of an output while it is worked on, so that another compile to it is refused at its beginning.

    Raises UsageError where another holds it, and Interrupted where it cannot be marked.
    """
    folder = folder.resolve()
    above = next(path for path in folder.parents if path.exists())
    mark = above / f"{_prefix(folder)}{hashlib.sha256(bytes(folder)).hexdigest()[:8]}"
    while True:
        try:
            mark.mkdir(exist_ok=True)
        except OSError as error:
            raise Interrupted(f"cannot write the artifact to {folder}: {error}; nothing was changed there") from error
        with Claim(mark) as claim:
            if claim.taken:
                try:
                    yield
                finally:
                    with suppress(OSError):  # a disk that fails by now has said so where it matters
                        mark.rmdir()
                return
            if mark.is_dir():  # else the other one has just ended
                raise UsageError(f"another compile is writing {folder}: wait until it ends, or give another -o")


def _is_ours(folder: Path) -> bool:
    """Whether a folder holds a manifest of ptqc; other programs have a file of this name, too."""
    try:
        manifest = Artifact(folder).manifest
    except UsageError:
        return False
    return "ptqc" in manifest and isinstance(manifest.get("files"), dict)


def is_expanded(folder: Path) -> bool:
    """Whether `ptqc expand` wrote a folder."""
    return _is_ours(folder) and EXPANDED in Artifact(folder).manifest


def publish(
    folder: Path,
    files: Mapping[str, bytes | Path],
    manifest: Mapping[str, Any],
    apart: Mapping[str, bytes],
    force: bool,
) -> Artifact:
    """Write an artifact beside its place and move it there in one step. files: by name; a path is copied from there.
    apart: files that differ from run to run, which the manifest does not name.

    Raises Interrupted when the disk does not take it.
    """
    from ptqc.ir.plan import write_json

    check_output(folder, force)
    folder = folder.resolve()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        with _beside(folder) as temporary:
            new = temporary / folder.name
            new.mkdir()
            sums = {name: _write_through(new / name, source) for name, source in sorted(files.items())}
            _write_through(new / MANIFEST, write_json({**manifest, "files": sums}).encode())
            for name, content in apart.items():
                _write_through(new / name, content)
            _move(new, folder)
    except OSError as error:
        raise Interrupted(f"cannot write the artifact to {folder}: {error}; nothing was changed there") from error
    return Artifact(folder)


@contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    """A temporary folder that no other compile takes for a leftover; made anew where one did before it was marked."""
    while True:
        result = tempfile.TemporaryDirectory(dir=folder.parent, prefix=_prefix(folder), ignore_cleanup_errors=True)
        with result as temporary:
            try:
                used = InUse(Path(temporary))
            except FileNotFoundError:
                continue
            yield Path(temporary)
            del used
            return


def _prefix(folder: Path) -> str:
    return f".{folder.name}.ptqc-"


def _sweep(folder: Path) -> None:
    """Remove what compiles that were killed left beside the folder."""
    for path in folder.parent.iterdir():
        if path.name.startswith(_prefix(folder)) and path.is_dir():
            with Claim(path) as claim:
                if claim.taken:
                    shutil.rmtree(path, ignore_errors=True)


def _write_through(path: Path, source: bytes | Path) -> str:
    """Write a file, from memory or piece by piece from another; the SHA-256 of what it has to hold."""
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file, source.open("rb") if isinstance(source, Path) else io.BytesIO(source) as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        stream.seek(0)
        shutil.copyfileobj(stream, file)
        file.flush()
        os.fsync(file.fileno())
    return digest


def _move(new: Path, place: Path) -> None:
    if not place.exists():
        new.rename(place)
    elif not _exchange(new, place):
        old = new.with_name(f"{new.name}.old")
        place.rename(old)
        try:
            new.rename(place)
        except OSError:
            old.rename(place)
            raise
        shutil.rmtree(old)


def _exchange(new: Path, place: Path) -> bool:
    """Swap two folders atomically where the system can; the old one goes with the temporary folder."""
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    return bool(rename(AT_FDCWD, bytes(new), AT_FDCWD, bytes(place), RENAME_EXCHANGE) == 0)
