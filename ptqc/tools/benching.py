"""`ptqc bench`: how long each kernel of a native library takes, or each operator of an ONNX file in ONNX Runtime."""

from dataclasses import dataclass
from os import PathLike
from typing import Any

import onnx_ir as ir
import onnxruntime as ort

from ptqc.artifact.bench import Bench
from ptqc.artifact.bench import bench as bench_library
from ptqc.artifact.folder import GOLDEN, Artifact, load
from ptqc.artifact.golden import Golden
from ptqc.artifact.names import OwnNames
from ptqc.calibration.inputs import input_specs
from ptqc.calibration.synthetic import ADVICE, draw
from ptqc.errors import CalibrationError, UsageError
from ptqc.execution.onnxruntime import Feeds
from ptqc.execution.speed import Subject, profile
from ptqc.frontend.in_memory import Model
from ptqc.tools.comparing.contenders import file_contender, memory_contender
from ptqc.utils.arguments import path_of
from ptqc.utils.logs import quiet_libraries
from ptqc.utils.text import shorten, table, visible

SECONDS = 2.0
NAME = 48
LISTED = 60
MICROSECOND, MILLISECOND = 1e3, 1e6


@dataclass(frozen=True)
class OperatorTime:
    """One operator of the file: its name, its type, the first value that it makes, and nanoseconds.

    own: the module of the model that was compiled which computes that value, or what this model calls it; else the
    same.
    kernel: what ONNX Runtime runs for it, such as QLinearConv for a Conv on integers.
    What ONNX Runtime adds to it or merges into it (conversions of layouts, activation functions) counts as its own.
    """

    node: str
    op_type: str
    kernel: str
    value: str
    own: str
    nanoseconds: float

    @property
    def name(self) -> str:
        """What a person calls it; a name that a compiled file gives to a node tells nothing."""
        return self.own if self.own != self.value else self.node or self.value


@dataclass(frozen=True)
class FileBench:
    """All operators that take time, in order, and nanoseconds of a whole run, one sample on one thread."""

    model: str
    operators: tuple[OperatorTime, ...]
    nanoseconds: float

    def to_json(self) -> dict[str, Any]:
        """The document of `--json`: microseconds of each operator, milliseconds of the whole."""
        return {
            "model": self.model,
            "runtime": f"ONNX Runtime {ort.__version__}",
            "threads": 1,
            "milliseconds": self.nanoseconds / MILLISECOND,
            "operators": [
                {
                    "name": operator.name,
                    "node": operator.node,
                    "operator": operator.op_type,
                    "kernel": operator.kernel,
                    "value": operator.value,
                    "microseconds": operator.nanoseconds / MICROSECOND,
                }
                for operator in self.operators
            ],
        }

    def __str__(self) -> str:
        slowest = sorted(self.operators, key=lambda operator: -operator.nanoseconds)
        rows = [self._cells(operator) for operator in slowest[:LISTED]]
        more = f" (the slowest {LISTED} of {len(slowest):,})" if len(slowest) > LISTED else ""
        return (
            f"{table(('operator', 'kernel', 'µs', '% of time'), rows)}\n\n"
            f"a whole run{more} takes {self.nanoseconds / MILLISECOND:.3f} ms of the processor's time on one thread, "
            f"one sample, ONNX Runtime {ort.__version__}; nodes that it adds or fuses count "
            "for the operator that they belong to"
        )

    def _cells(self, operator: OperatorTime) -> tuple[str, ...]:
        return (
            shorten(visible(operator.name), NAME),
            operator.kernel,
            f"{operator.nanoseconds / MICROSECOND:,.1f}",
            f"{100 * operator.nanoseconds / self.nanoseconds:.1f}",
        )


@quiet_libraries()
def bench(model: Model, *, threads: int = 1, cpu: str = "") -> Bench | FileBench:
    """Time the parts of a model on this machine.

    Args:
        model: An artifact, of which the kernels of the native library are
            timed; or an ONNX file, a model in memory, or an artifact without
            a library, of which the operators are timed in ONNX Runtime on one
            thread.
        threads: Threads of the library.
        cpu: Instruction set of the library; default: the best one here.

    Returns:
        Microseconds of each kernel or operator, and of the whole; `print` it.

    Raises:
        TargetError: The artifact has libraries, but none that runs here.
        UsageError: `threads` or `cpu` was given without a library.

    Example:
        >>> print(ptqc.bench("out"))
    """
    path = path_of("model", model) if isinstance(model, str | PathLike) else None
    artifact = load(path) if path is not None and path.is_dir() else None
    if artifact is not None and artifact.runnable:
        return bench_library(artifact.folder, threads=threads, isa=cpu)
    if threads != 1 or cpu:
        raise UsageError(
            f"{path or 'a model in memory'} has no native library, and operators of an ONNX file are timed on one "
            "thread: leave out --threads and --cpu (`ptqc compare` times whole files on several threads)"
        )
    if path is None:
        result, names = memory_contender(model, 1), OwnNames()
    elif artifact is None:
        result, names = file_contender(path, 1, None), OwnNames.beside(path)
    else:
        result, names = file_contender(artifact.path, 1, artifact), OwnNames.of(artifact)
    return _bench_file(result.name, result.model, _sample(result.model, artifact), names)


def _sample(model: ir.Model, artifact: Artifact | None) -> Feeds:
    """A golden sample of the artifact, or a drawn one."""
    if artifact is not None:
        golden = Golden.read(artifact.folder / GOLDEN).inputs[0]
        return {name: golden[name] for spec in input_specs(model) if (name := spec.name) in golden}
    try:
        return next(iter(draw(model, 1, 0, {})))
    except CalibrationError as error:
        raise CalibrationError(str(error).replace(ADVICE, "give an artifact, which has samples")) from error


def _bench_file(name: str, model: ir.Model, feeds: Feeds, names: OwnNames) -> FileBench:
    nodes = list(model.graph)
    keys = {str(output.name): place for place, node in enumerate(nodes) for output in node.outputs}
    (result,) = profile([Subject(model, feeds, keys)], SECONDS)
    operators = [
        _operator(nodes[place], names, result.kernels.get(place, ""), nanoseconds)
        for place, nanoseconds in sorted((key, taken) for key, taken in result.charges.items() if isinstance(key, int))
    ]
    return FileBench(name, tuple(operators), result.nanoseconds)


def _operator(node: ir.Node, names: OwnNames, kernel: str, nanoseconds: float) -> OperatorTime:
    value = str(node.outputs[0].name)
    kernel = kernel or node.op_type
    return OperatorTime(node.name or "", node.op_type, kernel, value, names.label(names.of_value(value)), nanoseconds)
