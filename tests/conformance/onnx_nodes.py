"""What a compile makes of every node test that comes with onnx: accepted and right, or refused; nothing else.

Cases run in a process of their own, so that a crash or a hang in a library is an outcome and not the end of the run.
`python tests/conformance/onnx_nodes.py [NAME…]` prints every outcome, one line each: name, opset, kind, detail.
"""

import multiprocessing
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import onnx
from onnx.backend.test.case.test_case import TestCase as Case

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from compiling import quick

import ptqc
from ptqc.errors import PtqcError
from ptqc.execute.onnxruntime import Runner

SAMPLES = 4
SECONDS = 120.0
# Of a float output's root mean square: 8-bit activations are allowed to cost about a twentieth of it.
TOLERANCE = 0.1
# Different in every run, so that there is nothing to compare with.
RANDOM = {
    "Bernoulli",
    "Dropout",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}


class Kind(StrEnum):
    """How a case can end; all but the first two are faults of ptqc."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    WRONG = "wrong"
    FAULT = "fault"
    CRASHED = "crashed"
    HUNG = "hung"


@dataclass(frozen=True)
class Outcome:
    """detail: the message of a refusal or a fault; what differs."""

    kind: Kind
    detail: str = ""


@cache
def cases() -> Mapping[str, Case]:
    """Every node test by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases themselves divide by zero, overflow, and use deprecated names
        from onnx.backend.test.case.node import collect_testcases

        return {case.name: case for case in collect_testcases(None)}


def opset_of(case: Case) -> int:
    """The version of ONNX's own operators that the model uses; 0 without any."""
    return next((entry.version for entry in case.model.opset_import if entry.domain in ("", "ai.onnx")), 0)


def outcomes(names: Sequence[str]) -> Iterator[tuple[str, Outcome]]:
    """The outcome of each case, in order."""
    spawn, left = multiprocessing.get_context("spawn"), list(names)
    while left:
        receiver, sender = spawn.Pipe(duplex=False)
        process = spawn.Process(target=_work, args=(left, sender), daemon=True)
        process.start()
        sender.close()
        for name, outcome in _received(receiver, left):
            left.remove(name)
            yield name, outcome
        process.kill()
        process.join()


def _received(receiver: Connection, names: Sequence[str]) -> Iterator[tuple[str, Outcome]]:
    """What a worker reports, and the fate of the case that stopped it."""
    receiver.poll(None)  # the worker is ready, or dead
    for name in list(names):
        if not receiver.poll(SECONDS):
            yield name, Outcome(Kind.HUNG, f"no answer in {SECONDS:.0f} s")
            return
        try:
            yield name, receiver.recv()
        except EOFError:
            yield name, Outcome(Kind.CRASHED, "the process died")
            return


def _work(names: Sequence[str], sender: Connection) -> None:
    known = cases()
    for name in names:
        sender.send(outcome_of(known[name].model, known[name].data_sets[0][0]))


def outcome_of(model: onnx.ModelProto, inputs: Sequence[object]) -> Outcome:
    """Compile a model calibrated on its inputs alone, and compare what comes out on them."""
    names = [value.name for value in model.graph.input]
    feeds = dict(zip(names, map(_array, inputs), strict=False))
    with tempfile.TemporaryDirectory(prefix="ptqc-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        try:
            with quick():
                artifact = ptqc.compile(
                    path, calibration=[feeds] * SAMPLES, output=Path(folder) / "out", cache=Path(folder) / "cache"
                )
        except PtqcError as error:
            return Outcome(Kind.REFUSED if error.exit_code == 2 else Kind.FAULT, str(error).removeprefix(f"{path}: "))
        except Exception as error:  # whatever else reaches the user is a finding
            return Outcome(Kind.FAULT, f"{type(error).__name__}: {error}")
        if any(node.op_type in RANDOM for node in model.graph.node):
            return Outcome(Kind.ACCEPTED)
        return compared(Runner(model).run(feeds), Runner(artifact.path).run(feeds))


def _array(value: object) -> object:
    """Some cases give NumPy's scalars, or tensors of types that NumPy lacks; sequences stay as they are."""
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def compared(wanted: Mapping[str, object], found: Mapping[str, object]) -> Outcome:
    """Accepted where every output is as the original's."""
    for name, array in wanted.items():
        if problem := _difference(array, found[name]):
            return Outcome(Kind.WRONG, f"{name}: {problem}")
    return Outcome(Kind.ACCEPTED)


def _difference(wanted: object, found: object) -> str:
    if not isinstance(wanted, np.ndarray) or not isinstance(found, np.ndarray) or wanted.dtype == object:
        return "" if str(wanted) == str(found) else f"{found} instead of {wanted}"
    if wanted.shape != found.shape or wanted.dtype != found.dtype:
        return f"{found.dtype}{found.shape} instead of {wanted.dtype}{wanted.shape}"
    if wanted.dtype.kind != "f":
        wrong = int(np.count_nonzero(wanted != found))
        return f"{wrong} of {wanted.size} values" if wrong else ""
    a, b = wanted.astype(np.float64), found.astype(np.float64)
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(b[finite]).all():
        return "NaN or infinite in other places"
    error, size = (float(np.sqrt(np.square(v[finite]).sum())) for v in (a - np.where(finite, b, a), a))
    return f"{error / size:.1%} of its size" if error > TOLERANCE * size else ""


if __name__ == "__main__":
    for name_, found_ in outcomes(sys.argv[1:] or list(cases())):
        print(name_, opset_of(cases()[name_]), found_.kind, found_.detail.replace("\n", " "), sep="\t", flush=True)
