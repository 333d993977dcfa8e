"""Checking a delivered artifact anew, on whatever machine it came to, from its files alone.

Files against their hashes; every integer kernel of `model.onnx` against the reference; outputs on the golden samples
against those of the machine that compiled it; the native library against `model.onnx`; the float model, where given,
against the one that was compiled; the same file, or its QDQ form, in runtimes of others.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import numpy as np
import onnx

from ptqc.artifact.bisect import (
    EMULATED,
    Bisection,
    as_compared,
    bisect,
    compared_targets,
    of_one_run,
    read_kernels,
    with_recorded,
)
from ptqc.artifact.expanded import EXPANDED
from ptqc.artifact.folder import GOLDEN, MODEL, Artifact, open_checked
from ptqc.artifact.golden import Golden, distances
from ptqc.artifact.names import OwnNames
from ptqc.artifact.report.scores import divergence_in_words
from ptqc.codegen.onnxruntime.unpack import unpack
from ptqc.codegen.onnxruntime.verify import compare
from ptqc.codegen.targets import check_emulated
from ptqc.errors import IntegrityError, TargetError, UsageError, VerificationError
from ptqc.execution import sandboxed
from ptqc.execution.agreement import alike, allowed, relative
from ptqc.execution.onnxruntime import (
    Feeds,
    Runner,
    computes_in_float,
    is_loaded_whole,
    session_options,
    tensors_of,
)
from ptqc.execution.saturation import saturates
from ptqc.frontend import read_model
from ptqc.frontend.first_run import try_once
from ptqc.frontend.model_files import parse, read_bytes
from ptqc.frontend.operators import check_functions
from ptqc.frontend.tensors import check_no_cycles, check_tensors, check_values, external_files
from ptqc.ir.external import fits_in_memory, has_references, refer_to_files, take_in
from ptqc.ir.zipmaps import as_tensors
from ptqc.passes.kv_cache.wrap import with_caches
from ptqc.passes.runner import in_float32
from ptqc.runtime.cuda_library import NAME
from ptqc.runtime.foreign import check_installed, file_for, remedy, run_in
from ptqc.runtime.interface import KERNELS
from ptqc.utils.logs import quiet_libraries
from ptqc.utils.text import entries, percent

LABEL, WIDTH = 12, 100


@dataclass(frozen=True)
class Verification:
    """The checks that passed; one that fails is an exception."""

    #: By the name of the check, what was compared, in words.
    checks: dict[str, str]

    def to_json(self) -> dict[str, dict[str, str]]:
        """The document of `--json`."""
        return {"checks": self.checks}

    def __str__(self) -> str:
        return "\n".join(
            textwrap.fill(f"{name:<{LABEL}}{result}", WIDTH, subsequent_indent=" " * LABEL, break_on_hyphens=False)
            for name, result in self.checks.items()
        )


@quiet_libraries()
def verify(
    folder: str | PathLike[str],
    *,
    model: str | Path | None = None,
    onnx_only: bool = False,
    runtimes: Sequence[str] = (),
) -> Verification:
    """Check an artifact without trusting the machine that compiled it.

    Args:
        folder: What `ptqc.compile` wrote; of what `ptqc.expand` wrote, files
            and golden samples are checked.
        model: The float model, to check that the artifact is made of it.
        onnx_only: Leave native libraries out.
        runtimes: Run the golden samples in these as well: "litert",
            "openvino", "qnn".

    Returns:
        What was checked; `print` it.

    Raises:
        UsageError: The folder is no artifact, or an option does not apply.
        IntegrityError: A file was changed, is missing or was added, or
            `model` is not the one that was compiled.
        VerificationError: It computes anything else than it should.
        TargetError: Its library cannot run here, or a runtime is not
            installed or refuses the file.

    Example:
        >>> ptqc.verify("out", model="model.onnx")
    """
    for name in runtimes:
        check_installed(name)
    artifact = open_checked(folder)
    if EXPANDED in artifact.manifest:
        return _verify_expanded(artifact, is_more_asked=model is not None or bool(runtimes))
    proto = with_recorded(artifact, as_tensors(checked_proto(artifact.folder / MODEL)))
    golden = _golden_of(artifact, proto)
    # What is beyond memory stays in the file, and weights in it packed, where nothing computes on integers.
    lean = has_references(proto) and computes_in_float(proto)
    _try_once(artifact, proto, golden, lean=lean)
    checks = _files(artifact)
    checks["kernels"] = _kernels(artifact, None if lean else proto, golden)
    runner = Runner(proto, lean=lean)
    checks["golden"] = _same_outputs(artifact, golden, [tensors_of(runner.run(x)) for x in golden.inputs], MODEL)
    if model is not None:
        checks["model"] = _source(artifact, golden, Path(model))
    if artifact.runnable or NAME in artifact.targets:
        checks["library"] = "left out" if onnx_only else _library(artifact, golden)
    for name in runtimes:
        checks[name] = _elsewhere(artifact, golden, name)
    return Verification(checks)


def _files(artifact: Artifact) -> dict[str, str]:
    return {"files": f"{len(artifact.manifest['files'])} have the SHA-256 of the manifest"}


def _verify_expanded(artifact: Artifact, *, is_more_asked: bool) -> Verification:
    """Check what `ptqc expand` wrote, whose integer kernels are those of the packed file."""
    if is_more_asked:
        raise UsageError(
            f"{artifact.folder} was written by `ptqc expand`: leave out --model and --runtime, or give the folder that "
            "`ptqc compile` wrote"
        )
    return Verification({**_files(artifact), "golden": check_golden(artifact, checked_proto(artifact.path), MODEL)})


def check_golden(artifact: Artifact, proto: onnx.ModelProto, what: str) -> str:
    """Run the golden samples on a file of this artifact. Raises VerificationError where they give something else."""
    whole = with_recorded(artifact, as_tensors(proto))
    golden = _golden_of(artifact, whole)
    runner = Runner(whole, options=session_options(threads=1), timed=True)
    return _same_outputs(artifact, golden, [tensors_of(runner.run(feeds)) for feeds in golden.inputs], what)


def _golden_of(artifact: Artifact, proto: onnx.ModelProto) -> Golden:
    """The golden samples of an artifact. Raises IntegrityError where they are not of the inputs of this file."""
    golden = Golden.read(artifact.folder / GOLDEN)
    declared = {value.name: value.type.tensor_type.elem_type for value in proto.graph.input}
    for name, array in ((name, array) for sample in golden.inputs for name, array in sample.items()):
        is_text = array.dtype.kind == "U"
        kind = onnx.TensorProto.STRING if is_text else onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        if declared.get(name) != kind:
            raise IntegrityError(f"{GOLDEN} feeds {name!r} as {array.dtype}, unlike {MODEL}; compile again")
    return golden


def checked_proto(path: Path) -> onnx.ModelProto:
    """The delivered model, looked at before any library that could hang or crash gets it."""
    proto = parse(read_bytes(path))
    check_tensors(proto, path)
    for check in (check_functions, check_values, check_no_cycles):
        check(proto)
    files = {path, *external_files(proto, path.parent).values()}
    place = take_in if fits_in_memory(sum(file.stat().st_size for file in files)) else refer_to_files
    place(proto, path)
    return proto


def _try_once(artifact: Artifact, proto: onnx.ModelProto, golden: Golden, *, lean: bool) -> None:
    """Have ONNX Runtime meet the file in a sandbox. lean: as it is run here, not as a whole."""
    is_skeleton = lean and not is_loaded_whole(proto)

    def save(folder: Path) -> Path:
        if not is_skeleton and not artifact.manifest.get("recorded"):
            return artifact.path
        (folder / MODEL).write_bytes(proto.SerializeToString())
        return folder / MODEL

    sandboxed.run(save, golden.inputs[0], artifact.manifest["file"]["bytes"], is_skeleton=is_skeleton)


def _kernels(artifact: Artifact, proto: onnx.ModelProto | None, golden: Golden) -> str:
    """proto: the file; None where it has no integer kernels."""
    own = OwnNames.of(artifact).in_file
    kernels, numbers = (0, 0) if proto is None else compare(proto, unpack(proto), golden.inputs, own=own)
    expected = artifact.manifest["verification"]["kernels_compared"]
    if kernels < expected:  # an earlier version compared fewer of them
        raise VerificationError(
            f"the reference finds {kernels} integer kernels in {MODEL}, its manifest says {expected}; compile again"
        )
    needed = artifact.manifest["cpu"]["session_option_without_vnni"]
    option = f"; sessions here need {entries(needed)}, else they saturate" if needed and saturates() else ""
    return f"{kernels} integer kernels give what the reference gives ({numbers:,} numbers compared){option}"


def _same_outputs(artifact: Artifact, golden: Golden, several_feeds: list[Feeds], what: str) -> str:
    """Raise VerificationError unless the outputs are the golden ones, or as close as two right executions are."""
    worst = 0.0
    if missing := golden.outputs[0].keys() - several_feeds[0].keys():
        raise VerificationError(f"{what} does not give the recorded outputs {', '.join(map(repr, sorted(missing)))}")
    for name, array in golden.outputs[0].items():
        wanted, here = [sample[name] for sample in golden.outputs], [sample[name] for sample in several_feeds]
        if not all(map(alike, wanted, here)):
            raise VerificationError(f"output {name!r} of {what} has another type or shape than when it was compiled")
        if array.dtype.kind == "f" and not all(map(_equal, wanted, here)):
            worst = max(worst, _near(name, wanted, here, artifact.manifest["golden"]["distances"][name], what))
    samples = f"{len(golden.inputs)} golden sample{'s' * (len(golden.inputs) > 1)}"
    return f"{what} gives the recorded outputs on {samples}" + (f", to {worst:.1e} of their size" if worst else "")


def _equal(wanted: np.ndarray, array: np.ndarray) -> bool:
    return bool(np.array_equal(wanted, array, equal_nan=True))


def _near(name: str, wanted: list[np.ndarray], arrays: list[np.ndarray], quantization: float, what: str) -> float:
    difference, limit = relative(wanted, arrays), allowed(quantization)
    if not difference <= limit:  # NaN included
        raise VerificationError(
            f"output {name!r} of {what} differs from what the machine that compiled it got, by {difference:.1%} of its "
            f"size (allowed {limit:.1%}): this ONNX Runtime or processor computes something else"
        )
    return difference


def _source(artifact: Artifact, golden: Golden, path: Path) -> str:
    recorded = artifact.manifest["source"]
    source = read_model(path, cast_double=artifact.manifest["options"]["cast_double"])
    if source.digest != recorded["sha256"]:
        raise IntegrityError(
            f"{path} is not the model that {artifact.folder} was compiled from: its SHA-256 is {source.digest}, "
            f"that of {recorded['name']} was {recorded['sha256']}"
        )
    if (caches := artifact.manifest.get("caches")) is not None:
        source = replace(source, model=with_caches(source.model, caches["caches"]))
    try_once(source, golden.inputs[0])
    result = distances(golden, Runner(in_float32(source.model, double=source.cast_double)))
    for name, difference in result.items():
        limit = allowed(artifact.manifest["golden"]["distances"][name])
        if not difference <= limit:
            raise VerificationError(
                f"output {name!r} is {difference:.1%} of its size away from that of {path} (allowed {limit:.1%})"
            )
    here, then = (
        percent(max(each.values(), default=0.0)) for each in (result, artifact.manifest["golden"]["distances"])
    )
    return (
        f"{path} is the one that was compiled; outputs differ from its by {here} of their size ({then} when it was "
        f"compiled): {divergence_in_words(artifact.manifest['results'])}"
    )


def _library(artifact: Artifact, golden: Golden) -> str:
    if NAME in artifact.targets:
        check_emulated(NAME, artifact.folder / NAME, artifact.manifest["targets"][NAME])
    compared = bisect(artifact.folder, data=list(golden.inputs))
    if compared.first is not None:
        raise VerificationError(str(compared))
    return "; ".join([str(compared), *(_whole(artifact, one, compared, golden) for one in compared_targets(artifact))])


def _elsewhere(artifact: Artifact, golden: Golden, name: str) -> str:
    """What a runtime of others makes of the golden samples. Raises VerificationError where that is something else."""
    path = file_for(name, artifact.folder)
    try:
        run = run_in(name, path, golden.inputs)
    except TargetError as error:
        if path != artifact.path:
            raise
        raise TargetError(f"{error}; it takes the QDQ model: {remedy(name, artifact.folder)}") from error
    what = f"{path.relative_to(artifact.folder)} in {run.name}"
    same = _same_outputs(artifact, golden, list(run.outputs), what)
    return f"{same}; {run.placement}"


def _whole(artifact: Artifact, target: str, compared: Bisection, golden: Golden) -> str:
    """What a target's library as a whole gives on the golden samples. Raises VerificationError."""
    golden, what = _of_one_run(artifact, target, golden), f"the {'CUDA' if target == NAME else 'native'} library"
    outputs = _outputs(artifact, target, compared, golden)
    if outputs is None:
        return f"{what} as a whole would take the emulator too long"
    return _same_outputs(artifact, golden, outputs, what)


def _of_one_run(artifact: Artifact, target: str, golden: Golden) -> Golden:
    """What a run of the library takes of the golden samples; of those that it cuts, what the file makes of that."""
    document = read_kernels(artifact.folder / target / KERNELS)
    inputs, outputs, runner = [], [], Runner(as_compared(artifact))
    for feeds, recorded in zip(golden.inputs, golden.outputs, strict=True):
        taken = of_one_run(document, feeds)
        is_whole = all(taken[name].shape == value.shape for name, value in feeds.items())
        inputs.append(taken)
        outputs.append(recorded if is_whole else tensors_of(runner.run(taken)))
    return Golden(tuple(inputs), tuple(outputs))


def _outputs(artifact: Artifact, target: str, compared: Bisection, golden: Golden) -> list[Feeds] | None:
    """What the library gives on the golden samples; None where it was compared kernel by kernel in an emulator."""
    if target != NAME:
        library = artifact.native()
        return [library.run(feeds) for feeds in golden.inputs]
    if EMULATED in compared.libraries:
        runs = [f"sample {index}" for index in range(len(golden.inputs))]
        return [compared.outputs[run] for run in runs] if compared.outputs else None
    on_gpu = artifact.native(device=NAME)
    return [on_gpu.run(feeds) for feeds in golden.inputs]
