"""Jobs: work in a process of its own, so that a crash or a hang there is an answer, and nothing else loads TVM.

A job is a folder of files. `python -m ptqc.codegen.kernels.process [BEFORE] FUNCTION FOLDER` is its process: a
function, as `module:name`, gets the folder and returns a report, which goes to `report.json`; what it raises on purpose
goes to `error.json`. Nothing is unpickled.
"""

import importlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptqc import errors
from ptqc.errors import InternalError, PtqcError, TargetError
from ptqc.utils import sandbox

LOWERED, JOB, VALUES, REPORT, ERROR = "lowered.onnx", "job.json", "values-{:03}.npz", "report.json", "error.json"
TIME_LIMIT = 1800.0


@dataclass(frozen=True)
class Work:
    """What the process of a job does."""

    #: Gets the folder and returns a report, or writes it itself, as `module:name`.
    function: str
    #: Is called before anything imports TVM, as `module:name`.
    before: str = ""

    def run(self, folder: Path, target: str, seconds: float = TIME_LIMIT) -> dict[str, Any]:
        """Let a process do a job; its report. Raises what it raised, and TargetError where it did not end well."""
        report, problem = self.attempt(folder, seconds)
        if problem:
            raise TargetError(f"TVM {problem}; leave the {target} target out")
        return report

    def attempt(self, folder: Path, seconds: float = TIME_LIMIT, mapped: int = 0) -> tuple[dict[str, Any], str]:
        """Let a process do a job; its report as far as there is one, and why it did not end well, if it did not.

        seconds, mapped: see `sandbox.run`. Raises what the work raised on purpose.
        """
        names = [name for name in (self.before, self.function) if name]
        problem = sandbox.run(__name__, [*names, str(folder)], seconds, mapped).problem or ""
        if (folder / ERROR).is_file():
            error = json.loads((folder / ERROR).read_text())
            raise getattr(errors, error["kind"], InternalError)(error["message"])
        if not (folder / REPORT).is_file():
            return {}, problem or "left no report"
        return json.loads((folder / REPORT).read_text()), problem


def write_document(path: Path, document: object) -> None:
    """Write a document of a job."""
    from ptqc.ir.plan import write_json

    path.write_text(write_json(document), encoding="utf-8")


def main(arguments: Sequence[str]) -> None:
    """Do a job: call functions of no arguments, and then one of the folder."""
    *names, folder = arguments
    # TVM would load it where it is installed, for seconds and without need.
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        for name in names[:-1]:
            _function(name)()
        report = _function(names[-1])(Path(folder))
        if report is not None:
            write_document(Path(folder) / REPORT, report)
    except PtqcError as error:
        write_document(Path(folder) / ERROR, {"kind": type(error).__name__, "message": str(error)})


def _function(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return function


if __name__ == "__main__":
    main(sys.argv[1:])
