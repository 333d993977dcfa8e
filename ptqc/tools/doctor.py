"""What a compile needs of this machine and of its packages: each is tried, with what to do where it fails."""

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from ptqc.codegen import targets
from ptqc.errors import PtqcError, TargetError
from ptqc.execution import saturation
from ptqc.formats import Format
from ptqc.passes.registry import ALWAYS, examined
from ptqc.solver.integer_program import Goal, JointChoice, Option, solve
from ptqc.utils.machine import processor_features, processor_name
from ptqc.utils.memory import available_bytes
from ptqc.utils.parallel import processors
from ptqc.utils.store import store_at
from ptqc.utils.version import __version__

DISTRIBUTION = "ptqc"
# Instruction sets that decide how fast integer kernels are, as the system lists them.
TOLD_FEATURES = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8")
# What needs the packages of an extra; those of targets are told with these.
EXTRAS = {
    "torch": "models of PyTorch, --sensitivity curvature and the gradient steps of --pipeline advanced need it",
    "text": "text as data needs it",
    "openvino": "running QDQ models in OpenVINO needs it",
    "qnn": "running QDQ models on Qualcomm's NPUs, in an emulator, and --chips need it",
}
ENOUGH_MEMORY, ENOUGH_DISK = 4 * 2**30, 2 * 2**30
TRIED = 2**16  # bytes that a disk has to take


class Judgement(StrEnum):
    """How a finding is judged: a lack stops a compile, a remark does not."""

    OK = "ok"
    REMARK = "remark"
    LACK = "lack"


@dataclass(frozen=True)
class Finding:
    """One line of the examination. remedy: what to do, where there is anything."""

    what: str
    found: str
    state: Judgement = Judgement.OK
    remedy: str = ""

    def __str__(self) -> str:
        message = f"{self.state:<7} {self.what:<22} {self.found}"
        return f"{message}\n{'':<31}{self.remedy}" if self.remedy else message


@dataclass(frozen=True)
class Examination:
    """All findings, in order."""

    findings: tuple[Finding, ...]

    @property
    def is_well(self) -> bool:
        """Whether nothing that a compile needs is lacking."""
        return all(finding.state != Judgement.LACK for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """For scripts."""
        return {"is_well": self.is_well, "findings": [asdict(finding) for finding in self.findings]}

    def __str__(self) -> str:
        lacking = sum(finding.state == Judgement.LACK for finding in self.findings)
        verdict = "ptqc can work here." if self.is_well else f"ptqc cannot work here: {lacking} of these are missing."
        return "\n".join([*map(str, self.findings), "", verdict])


def examine(cache: str | Path | None = None) -> Examination:
    """Look at everything. cache: the store's folder, where it is not the default one."""
    checks: Sequence[Callable[[], Iterator[Finding]]] = (
        _versions,
        _packages,
        _processor,
        _memory,
        _runtime,
        _solver,
        _formats,
        _targets,
        _extensions,
        lambda: _store(cache),
        _temporary,
    )
    return Examination(tuple(finding for check in checks for finding in check()))


def _versions() -> Iterator[Finding]:
    yield Finding("ptqc", f"{__version__} on Python {platform.python_version()}, {sys.platform}")


def _packages() -> Iterator[Finding]:
    """Those that ptqc requires, then those that extras add."""
    for text in metadata.requires(DISTRIBUTION) or ():
        requirement = Requirement(text)
        if requirement.marker is None:
            yield _package(requirement, Judgement.LACK, f"pip install '{requirement}'")
        for extra, use in EXTRAS.items():
            if requirement.marker is not None and requirement.marker.evaluate({"extra": extra}):
                yield _package(requirement, Judgement.REMARK, f"{use}: pip install '{DISTRIBUTION}[{extra}]'")


def _package(requirement: Requirement, otherwise: Judgement, remedy: str) -> Finding:
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return Finding(requirement.name, "not installed", otherwise, remedy)
    if not requirement.specifier.contains(version, prereleases=True):
        return Finding(requirement.name, f"{version}, but ptqc needs {requirement.specifier}", otherwise, remedy)
    return Finding(requirement.name, version)


def _processor() -> Iterator[Finding]:
    features = processor_features()
    result = [name for name in TOLD_FEATURES if name in features]
    usable = f"{processors()} of {os.cpu_count()} threads usable"
    yield Finding(
        "processor", f"{processor_name()}, {usable}, with {' '.join(result) or 'no vector instructions of note'}"
    )


def _memory() -> Iterator[Finding]:
    free = available_bytes()
    remedy = "a compile of a network of 25 million weights takes about 3 GB; give fewer --samples"
    state = Judgement.OK if free >= ENOUGH_MEMORY else Judgement.REMARK
    yield Finding("memory", f"{_gigabytes(free)} free", state, "" if state == Judgement.OK else remedy)


def _runtime() -> Iterator[Finding]:
    """A product on codes, whose answer is known."""
    try:
        exact = saturation.product(saturation.EXACT_SUMS) == saturation.LENGTH * 255 * 127
        saturates = saturation.saturates()
    except Exception as error:  # ONNX Runtime raises a dozen types of its own
        yield Finding(
            "ONNX Runtime", f"does not run: {error}", Judgement.LACK, "pip install --force-reinstall onnxruntime"
        )
        return
    if not exact:
        yield Finding(
            "ONNX Runtime", "computes integers wrongly", Judgement.LACK, "install another release of onnxruntime"
        )
    elif saturates:
        remedy = "7-bit weights, the default, are exact; --allow-8bit needs the session option that the manifest names"
        yield Finding("ONNX Runtime", "8-bit weights saturate on this processor", Judgement.REMARK, remedy)
    else:
        yield Finding("ONNX Runtime", "integers are exact, also with 8-bit weights")


def _solver() -> Iterator[Finding]:
    """A program whose answer is known."""
    small, large = {"loss": 2.0, "bytes": 1.0}, {"loss": 1.0, "bytes": 2.0}
    program = JointChoice((Option("weight", "small", small), Option("weight", "large", large)))
    try:
        result = solve(program, Goal("loss", {"bytes": 1.5})).selection["weight"]
    except Exception as error:  # whatever HiGHS raises
        yield Finding("solver", f"does not run: {error}", Judgement.LACK, "pip install --force-reinstall highspy")
        return
    state = Judgement.OK if result == "small" else Judgement.LACK
    yield Finding("solver", "HiGHS solves" if result == "small" else "HiGHS gives a wrong answer", state)


def _formats() -> Iterator[Finding]:
    """Those that cannot be fitted here, so that a compile leaves them out."""
    for family in Format.families:
        if lack := family.lacks():
            remedy = "fix or install it; without it, files of the same size lose more"
            yield Finding(f"formats {family.family}", lack, Judgement.REMARK, remedy)


def _targets() -> Iterator[Finding]:
    for name in targets.names():
        title, target = targets.title_of(name), targets.target_named(name)
        try:
            target.check_present()
        except TargetError as error:
            yield Finding(f"--target {name}", f"not available ({title})", Judgement.REMARK, str(error))
        else:
            yield Finding(f"--target {name}", title)
        if isinstance(target, targets.ToolUser):
            yield from map(_tool, target.tools())


def _tool(tool: targets.Tool) -> Finding:
    if tool.path:
        return Finding(f"  {tool.name}", f"{tool.use} ({tool.path})")
    return Finding(f"  {tool.name}", "not installed", Judgement.REMARK, tool.remedy)


def _extensions() -> Iterator[Finding]:
    """What installed packages add. Of formats and operators one that cannot be used stops every compile."""
    for plugin, error in examined():
        what = f"{plugin.kind} {plugin.name}"
        if error is None:
            yield Finding(what, f"added by {plugin.package}")
        else:
            state = Judgement.LACK if plugin.kind in ALWAYS else Judgement.REMARK
            yield Finding(what, str(error), state, f"fix or uninstall {plugin.package}")


def _store(cache: str | Path | None) -> Iterator[Finding]:
    remedy = "name another folder with --cache, or make room there"
    try:
        folder = store_at(cache).folder
        place = next(one for one in (folder, *folder.parents) if one.exists())
        free = shutil.disk_usage(place).free
    except (OSError, PtqcError) as error:
        yield Finding("store", f"cannot be used: {error}", Judgement.LACK, remedy)
        return
    yield _place("store", folder, place, free, remedy)


def _temporary() -> Iterator[Finding]:
    """Where the files of a compile are until they are delivered."""
    remedy = "name another folder with the environment variable TMPDIR, or make room there"
    try:
        folder = Path(tempfile.gettempdir())
        free = shutil.disk_usage(folder).free
    except OSError as error:
        yield Finding("temporary files", f"cannot be written: {error}", Judgement.LACK, remedy)
        return
    yield _place("temporary files", folder, folder, free, remedy)


def _place(what: str, folder: Path, existing: Path, free: int, remedy: str) -> Finding:
    """Whether files and folders can be made in a folder, or in the one above it that exists: what permissions say of
    file systems such as /proc is not so.
    """
    try:
        with tempfile.TemporaryDirectory(dir=existing, prefix=".ptqc-doctor-") as tried:
            (Path(tried) / "file").write_bytes(bytes(TRIED))
    except OSError as error:
        return Finding(what, f"{folder} cannot be written to: {error.strerror or error}", Judgement.LACK, remedy)
    state = Judgement.OK if free >= ENOUGH_DISK else Judgement.REMARK
    return Finding(what, f"{folder}, {_gigabytes(free)} free", state, "" if state == Judgement.OK else remedy)


def _gigabytes(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"
