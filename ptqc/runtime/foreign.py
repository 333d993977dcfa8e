"""Running a model in a runtime of others, in a process of its own, since it may crash or hang.

`python -m ptqc.runtime.foreign NAME FOLDER` is that process. It finds `job.json` and samples in the folder and leaves
outputs and `report.json` there. Each runtime is one object in a file of this package.
"""

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ptqc.errors import TargetError
from ptqc.utils import sandbox
from ptqc.utils.arguments import one_of
from ptqc.utils.scratch import scratch
from ptqc.utils.store import write_npz
from ptqc.utils.text import shorten

SECONDS = 1800.0
SHOWN, LENGTH = 3, 400
JOB, REPORT, INPUTS, OUTPUTS = "job.json", "report.json", "inputs-{:03}.npz", "outputs-{:03}.npz"
MODULES: Mapping[str, str] = {
    "litert": "ptqc.runtime.litert",
    "openvino": "ptqc.runtime.openvino",
    "qnn": "ptqc.runtime.qnn",
}

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class LayerPlacement:
    """Where a runtime computes the operators of a model.

    layers: convolutions and products on integers. others: those that are not, with what they compute in. elsewhere:
    operators that it leaves to ONNX Runtime's CPU provider.
    """

    layers: int
    others: Mapping[str, str] = field(default_factory=dict)
    elsewhere: Sequence[str] = ()

    def __str__(self) -> str:
        count = self.layers + len(self.others)
        text = f"{self.layers} of {count} layers on integers"
        if self.others:
            others = [f"{name} {kind}" for name, kind in self.others.items()]
            text += f" (not {', '.join(others[:SHOWN])}{', …' if len(others) > SHOWN else ''})"
        return text + (f", {len(self.elsewhere)} operators left to the CPU" if self.elsewhere else "")


@dataclass(frozen=True)
class ForeignRun:
    """What a runtime made of a model. outputs: sample by sample. files: what it wrote, by name."""

    title: str
    version: str
    outputs: Sequence[Arrays]
    placement: LayerPlacement
    files: Mapping[str, Path] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The runtime and its version."""
        return f"{self.title} {self.version}"


@dataclass(frozen=True)
class RuntimeCheck:
    """What a runtime made of a model before that was delivered, for manifest, summary and report.

    title: the runtime and its version. loss: there, on so many samples. packed_loss: that of the packed file in ONNX
    Runtime on the same. placement: what is on integers. note: the rest; of a runtime that did not run it, why.
    """

    title: str
    note: str = ""
    loss: float | None = None
    packed_loss: float | None = None
    unit: str = ""
    samples: int = 0
    placement: str = ""

    def __str__(self) -> str:
        loss = ""
        if self.loss is not None and self.packed_loss is not None:
            loss = f"loss {self.loss:.3g} {self.unit} on {self.samples} samples (packed file: {self.packed_loss:.3g})"
        return f"{self.title}: {'; '.join(filter(None, (loss, self.placement, self.note)))}"


class ForeignRuntime(Protocol):
    """A runtime of others, and how ptqc runs a model in it."""

    @property
    def title(self) -> str:
        """What users know it as."""

    @property
    def distribution(self) -> str:
        """What has to be installed."""

    @property
    def module(self) -> str:
        """The distribution's module."""

    @property
    def files(self) -> Sequence[str]:
        """Files of an artifact that it may run, the preferred one first."""

    def run(self, model: Path, samples: Sequence[Arrays], folder: Path, options: Mapping[str, Any]) -> "ForeignOutcome":
        """Load a model and run it on samples. folder: for what it writes. Raises whatever the runtime raises."""


@dataclass(frozen=True)
class ForeignOutcome:
    """What `ForeignRuntime.run` returns. files: names of what it wrote into its folder."""

    outputs: Sequence[Arrays]
    placement: LayerPlacement
    files: Sequence[str] = ()


def runtime_named(name: str) -> ForeignRuntime:
    """A runtime. Raises UsageError for an unknown name."""
    one_of("runtime", name, tuple(MODULES))
    runtime: ForeignRuntime = import_module(MODULES[name]).RUNTIME
    return runtime


def is_installed(name: str) -> bool:
    """Whether the package of a runtime is installed."""
    return find_spec(runtime_named(name).module) is not None


def described(name: str) -> str:
    """A runtime and its version. Raises as `check_installed`."""
    check_installed(name)
    runtime = runtime_named(name)
    return f"{runtime.title} {metadata.version(runtime.distribution)}"


def file_for(name: str, folder: Path) -> Path:
    """Of the files of an artifact, the one that a runtime takes. Raises TargetError where there is none."""
    runtime = runtime_named(name)
    for file in runtime.files:
        if (folder / file).is_file():
            return folder / file
    raise TargetError(f"{runtime.title} takes {runtime.files[0]}, which is missing: {remedy(name, folder)}")


def remedy(name: str, folder: Path) -> str:
    """The command that adds the file that a runtime takes best to an artifact."""
    target, _, _ = runtime_named(name).files[0].partition("/")
    return f"ptqc resolve {folder} --target {target}"


def check_installed(name: str) -> None:
    """Raises UsageError for an unknown runtime, TargetError for one that is not installed."""
    if not is_installed(name):
        raise TargetError(f"{runtime_named(name).title} is not installed: pip install 'ptqc[{name}]'")


def run_in(
    name: str,
    model: Path,
    samples: Sequence[Arrays],
    folder: Path | None = None,
    seconds: float = SECONDS,
    **options: Any,
) -> ForeignRun:
    """Run a model in a runtime of others.

    folder: keeps the files that it writes; None: nothing is kept. options: of the runtime.
    Raises TargetError where the runtime is not installed, refuses the model, crashes or hangs.
    """
    check_installed(name)
    runtime = runtime_named(name)
    with scratch() as temporary:
        job = Path(temporary)
        for number, feeds in enumerate(samples):
            write_npz(job / INPUTS.format(number), feeds)
        (job / JOB).write_text(json.dumps({"model": str(model.resolve()), "samples": len(samples), "options": options}))
        ended = sandbox.run(__name__, [name, str(job)], seconds, mapped=model.stat().st_size)
        if not (job / REPORT).is_file():
            raise TargetError(f"{runtime.title} {ended.problem or 'left no report'}")
        report = json.loads((job / REPORT).read_text())
        if problem := report.get("problem") or ended.problem:
            raise TargetError(f"{runtime.title} {report['version']} {problem}")
        outputs = [_read(job / OUTPUTS.format(number)) for number in range(len(samples))]
        files = {each: Path(shutil.move(job / each, folder)) for each in report["files"]} if folder is not None else {}
        return ForeignRun(runtime.title, report["version"], outputs, LayerPlacement(**report["placement"]), files)


def _read(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def _work(name: str, folder: Path) -> None:
    """The process of a runtime."""
    runtime, job = runtime_named(name), json.loads((folder / JOB).read_text())
    report: dict[str, Any] = {"version": metadata.version(runtime.distribution), "files": []}
    samples = [_read(folder / INPUTS.format(number)) for number in range(job["samples"])]
    try:
        outcome = runtime.run(Path(job["model"]), samples, folder, job["options"])
    except Exception as error:  # whatever it raises
        report["problem"] = f"refuses it: {shorten(' '.join(str(error).split()), LENGTH) or type(error).__name__}"
    else:
        for number, arrays in enumerate(outcome.outputs):
            write_npz(folder / OUTPUTS.format(number), arrays)
        report |= {"placement": asdict(outcome.placement), "files": list(outcome.files)}
    (folder / REPORT).write_text(json.dumps(report))


if __name__ == "__main__":
    _work(sys.argv[1], Path(sys.argv[2]))
