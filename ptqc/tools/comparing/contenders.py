"""What can be compared: ONNX files in ONNX Runtime, and the native libraries of artifacts."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path

import onnx
import onnx_ir as ir
import onnxruntime as ort

from ptqc.artifact.folder import Artifact, artifact_of, load
from ptqc.calibration.images import AnyPreprocessing, Preprocessing
from ptqc.calibration.inputs import input_specs
from ptqc.calibration.recording import recorder
from ptqc.calibration.sources import holds_images
from ptqc.calibration.texts import Texts, with_tokenizer
from ptqc.errors import ModelError, PtqcError, TargetError, UsageError
from ptqc.execution.onnxruntime import Feeds, Runner, session_options
from ptqc.frontend.in_memory import Model, file_of
from ptqc.frontend.model_files import parse, read_bytes, translating
from ptqc.frontend.operators import check_constants, check_functions, drop_annotations
from ptqc.frontend.tensors import check_name, check_tensors, external_files
from ptqc.ir import recorded, zipmaps
from ptqc.ir.external import hold_external
from ptqc.ir.layers import find_caches
from ptqc.kv_cache.form import CacheForm, packed_feeds, unpacked_feeds
from ptqc.kv_cache.known import forms_of_documents
from ptqc.runtime.foreign import ForeignRun, described, file_for, run_in
from ptqc.runtime.interface import WEIGHTS, library_file
from ptqc.utils.arguments import path_of
from ptqc.utils.scratch import Scratch
from ptqc.utils.store import file_digest

RUNTIME = f"ONNX Runtime {ort.__version__}"

Run = Callable[[Feeds], Feeds]


@dataclass(frozen=True)
class Contender:
    """One way to run a model.

    runtime: what runs it. bytes: of all files that it needs. start: opens it. model: its graph.
    artifact: what it is part of. unpacked: forms of caches that it takes and gives as if they were not packed. room:
    the folder of a model that was given in memory. run_all: runs all samples in a process of its own, which is not
    timed; None: `start` runs them.
    """

    name: str
    runtime: str
    bytes: int
    start: Callable[[], Run]
    model: ir.Model
    artifact: Artifact | None = None
    unpacked: Mapping[str, CacheForm] = field(default_factory=dict)
    room: Scratch | None = None
    run_all: Callable[[Sequence[Feeds]], ForeignRun] | None = None

    @property
    def inputs(self) -> set[str]:
        """Their names."""
        parts = {name + suffix for name, form in self.unpacked.items() for suffix in form.suffixes}
        return {spec.name for spec in input_specs(self.model)} - parts | self.unpacked.keys()

    def starter(self, feeds: Feeds) -> Callable[[], Callable[[], object]]:
        """Opens it for runs of one sample."""

        def opened() -> Callable[[], object]:
            run = self.start()
            return lambda: run(feeds)

        return opened


def images_as_compiled(
    stated: AnyPreprocessing | None, contenders: Sequence[Contender], data: object
) -> tuple[Preprocessing | None, tuple[str, ...]]:
    """How images are prepared: as stated, else as for the compile of the first artifact that says so.

    Also warnings of artifacts whose compile prepared the images of data otherwise, or does not say how.
    """
    artifacts = {one.artifact.folder: one.artifact for one in contenders if one.artifact is not None}
    recorded = {folder: artifact.preprocessing for folder, artifact in artifacts.items()}
    own = Preprocessing.of(stated)
    result = own or next(filter(None, recorded.values()), None)
    if not holds_images(data):
        return result, ()
    used = (result or Preprocessing()).resolved(input_specs(contenders[0].model))
    warnings = [_otherwise(folder, used, before, is_stated=own is not None) for folder, before in recorded.items()]
    return result, tuple(filter(None, warnings))


def texts_as_compiled(data: object, contenders: Sequence[Contender]) -> tuple[object, tuple[str, ...]]:
    """Data with the tokenizer of the first artifact that was compiled on texts, where they are text without one.

    Also warnings of artifacts that were compiled with another tokenizer.
    """
    artifacts = [one.artifact for one in contenders if one.artifact is not None]
    recorded = {artifact.folder: artifact.texts for artifact in artifacts if artifact.texts is not None}
    data = with_tokenizer(data, next(iter(recorded.values()), None))
    if not isinstance(data, Texts) or not Path(data.tokenizer).is_file():
        return data, ()
    digest = file_digest(Path(data.tokenizer))
    return data, tuple(
        f"texts are read with {data.tokenizer}, but {folder} was compiled with another tokenizer, {before.tokenizer}"
        for folder, before in recorded.items()
        if before.sha256 != digest
    )


def _otherwise(folder: Path, used: Preprocessing, before: Preprocessing | None, *, is_stated: bool) -> str:
    if before is None:
        return (
            ""
            if is_stated
            else (
                f"{folder} was compiled on arrays, so that nothing says how its images are prepared; here with "
                f"{_settings(used, Preprocessing())}: give --preprocessing"
            )
        )
    if used == before:
        return ""
    return (
        f"images are prepared with {_settings(used, before)}, but {folder} was compiled with "
        f"{_settings(before, used)}: leave --preprocessing and its options out to prepare them as there"
    )


def _settings(preprocessing: Preprocessing, other: Preprocessing) -> str:
    """Where it differs from the other; all of it where it does not."""
    mine, others = asdict(preprocessing), asdict(other)
    return ", ".join(f"{name} {value}" for name, value in mine.items() if mine == others or value != others[name])


def contenders(
    model: Model, threads: int, *, recording: bool = False, runtimes: Sequence[str] = ()
) -> Iterator[Contender]:
    """A model in a file or in memory, or of an artifact its file and its library. threads: of a run, 0 for all.

    recording: let models read from inputs what they draw, so that all get the same (see `ptqc.ir.recorded`). runtimes:
    of others, that an artifact's file runs in as well.
    Raises ModelError for what is no model, and UsageError for a folder that is no artifact.
    """
    if threads < 0:
        raise UsageError(f"threads = {threads}; give a positive number, or 0 for all processors")
    if not isinstance(model, str | PathLike):
        yield memory_contender(model, threads, recording=recording)
        return
    path = path_of("model", model)
    if not path.is_dir():
        yield file_contender(path, threads, artifact_of(path), recording=recording)
        return
    artifact = load(path)
    in_onnx = file_contender(artifact.path, threads, artifact, recording=recording)
    yield in_onnx
    for name in runtimes:
        yield _elsewhere(artifact, name)
    try:
        library = artifact.native(threads)
    except TargetError:  # none was built, or none of them runs here
        return
    folder = artifact.folder / artifact.runnable
    size = sum((folder / name).stat().st_size for name in (library_file(library.isa), WEIGHTS))
    yield Contender(
        str(folder),
        f"native library, {library.isa}",
        size,
        lambda: _library_run(artifact, threads),
        in_onnx.model,
        artifact,
    )


def _elsewhere(artifact: Artifact, name: str) -> Contender:
    """An artifact's file in a runtime of others. Raises TargetError where that is not installed."""
    path = file_for(name, artifact.folder)
    runtime = described(name)
    is_onnx = path.suffix == artifact.path.suffix
    read = file_contender(path if is_onnx else artifact.path, 1, artifact)  # another file has the same interface
    size = read.bytes if is_onnx else path.stat().st_size
    return replace(read, name=str(path), bytes=size, runtime=runtime, run_all=partial(run_in, name, path))


def memory_contender(value: object, threads: int, *, recording: bool = False) -> Contender:
    """A model in memory, in ONNX Runtime. Raises UsageError for what is no model, ModelError for a damaged one."""
    room = Scratch()
    path, kind = file_of(value, room.folder)
    return replace(file_contender(path, threads, None, f"the {kind}", recording=recording), room=room)


def file_contender(
    path: Path, threads: int, artifact: Artifact | None, called: str = "", *, recording: bool = False
) -> Contender:
    """An ONNX file, of an artifact or not, in ONNX Runtime; `called` so. recording: see `contenders`.

    Raises ModelError for what is no model.
    """
    name = called or str(path)
    try:
        data = read_bytes(path)
        proto = parse(data)
        check_functions(proto)
        check_constants(proto)
        for value in (*proto.graph.input, *proto.graph.output):
            check_name(value.name)
        check_tensors(proto, path)
        files = external_files(proto, path.parent)
        drop_annotations(proto)  # marks that ptqc puts into models in memory may stand in the file
        proto = zipmaps.as_tensors(proto)
        stand_ins: recorded.Recorded = {}
        if recording and artifact is not None:
            stand_ins = artifact.manifest.get("recorded", {})
            proto = recorded.with_inputs(proto, stand_ins)
        elif recording:
            stand_ins = recorded.record(proto)
        with translating():
            model = ir.from_proto(proto)
        recorded.remember(model, stand_ins)
        hold_external(model, path.parent, mapped=True, own=path)
    except ModelError as error:
        raise ModelError(f"{name}: {error}") from error
    size = len(data) + sum(file.stat().st_size for file in files.values())

    def start() -> Run:
        runner = Runner(model, options=session_options(threads=threads), timed=True)
        return _taking(runner.inputs, runner.run) if recording else runner.run

    return Contender(name, RUNTIME, size, start, model, artifact)


def _library_run(artifact: Artifact, threads: int) -> Run:
    """Runs the library; what the file draws, and the library reads, is drawn for it where samples do not have it."""
    library, stand_ins = artifact.native(threads), artifact.manifest.get("recorded", {})
    if not stand_ins:
        return library.run
    model = ir.from_proto(recorded.with_inputs(onnx.load(artifact.path), stand_ins))
    recorded.remember(model, stand_ins)
    more = recorder(model)
    names = [value.name for value in library.interface.inputs]

    def run(feeds: Feeds) -> Feeds:
        whole = feeds if more is None or feeds.keys() >= set(names) else {**feeds, **more(feeds)}
        return library.run({name: whole[name] for name in names if name in whole})

    return run


def _taking(inputs: Collection[str], run: Run) -> Run:
    """Runs what takes these inputs on samples that may have recorded values of others."""

    def taken(feeds: Feeds) -> Feeds:
        is_exact = len(feeds) == len(inputs)
        return run(feeds if is_exact else {name: array for name, array in feeds.items() if name in inputs})

    return taken


@contextmanager
def running(one: Contender, what: str = "these samples") -> Iterator[None]:
    """Within it, whatever a runtime raises is a ModelError that says which model does not run on what."""
    try:
        yield
    except PtqcError:
        raise
    except Exception as error:  # ONNX Runtime raises a dozen types of its own
        raise ModelError(f"{one.name} does not run on {what}: {error}") from error


def of_one_interface(contenders: Sequence[Contender]) -> list[Contender]:
    """All with the interface of the first: packed caches go in and come out unpacked where those of the first are.

    Raises UsageError where the inputs of some have other names than those of the first all the same.
    """
    first = contenders[0]
    alike = [one if one.inputs == first.inputs else _unpacking(one) for one in contenders]
    for one in alike:
        if one.inputs != first.inputs:
            raise UsageError(
                f"{one.name} takes the inputs {sorted(one.inputs)}, but {first.name} takes {sorted(first.inputs)}; "
                "compare models of one interface"
            )
    return alike


def _unpacking(one: Contender) -> Contender:
    """The same for caches that are not packed, if it is an artifact that packs them."""
    result = one.artifact.manifest.get("caches") if one.artifact is not None else None
    if result is None:
        return one
    forms = forms_of_documents(result["caches"])
    presents = {str(c.present.name): forms[c.name] for c in find_caches(one.model) if c.name in forms}

    def start() -> Run:
        run = one.start()
        return lambda feeds: unpacked_feeds(run(packed_feeds(feeds, forms)), presents)

    return replace(one, start=start, unpacked=forms)
