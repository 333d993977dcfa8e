"""What a compile makes of every node test that comes with onnx: accepted and right, or refused; nothing else.

Cases run in a process of their own, so that a crash or a hang in a library is an outcome and not the end of the run.
`python tests/conformance/onnx_nodes.py [NAME…]` prints every outcome, one line each: name, opset, whether ONNX Runtime
passes the test itself, kind, detail; then the shares.
"""

import multiprocessing
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import onnx
from onnx.backend.test.case import node
from onnx.backend.test.case.test_case import TestCase as Case
from onnx.backend.test.runner import Runner as Checker

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from compiling import quick

import ptqc
from ptqc.errors import PtqcError
from ptqc.execution import speed
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.frontend.operators import MAX_OPSET, MIN_OPSET

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


def is_counted(case: Case) -> bool:
    """Whether a share of the cases counts this one: of an opset that is accepted, and right in ONNX Runtime itself."""
    return MIN_OPSET <= opset_of(case) <= MAX_OPSET and passes_in_onnxruntime(case)


def passes_in_onnxruntime(case: Case) -> bool:
    """Whether ONNX Runtime gives what the test expects, by onnx's own comparison."""
    model, inputs, expected = parts(case)
    try:
        result = Runner(model).run(feeds_of(model, inputs))
        Checker.assert_similar_outputs(list(map(_array, expected)), list(result.values()), case.rtol, case.atol)
    except Exception:  # of ONNX Runtime, or of the comparison
        return False
    return True


def parts(case: Case) -> tuple[onnx.ModelProto, Sequence[np.ndarray], Sequence[np.ndarray]]:
    """The model of a node test, its inputs and what they give."""
    assert case.model is not None
    assert case.data_sets is not None
    return case.model, *case.data_sets[0]


@cache
def cases() -> Mapping[str, Case]:
    """Every node test by name."""
    with _quiet():
        return {case.name: case for case in node.collect_testcases(None)}


def some_cases(names: Mapping[str, str]) -> dict[str, Case]:
    """Node tests by name, each of a module of onnx: making them all takes seconds."""
    with _quiet():
        for module in names.values():
            import_module(f"{node.__name__}.{module}")
    known = {case.name: case for case in node._NodeTestCases}
    return {name: known[name] for name in names}


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases themselves divide by zero, overflow, and use deprecated names
        yield


def opset_of(case: Case) -> int:
    """The version of ONNX's own operators that the model uses; 0 without any."""
    return next((entry.version for entry in parts(case)[0].opset_import if entry.domain in ("", "ai.onnx")), 0)


def outcomes(chosen: Mapping[str, Case]) -> Iterator[tuple[str, Outcome]]:
    """The outcome of each case by name, in order."""
    spawn, left = multiprocessing.get_context("spawn"), dict(chosen)
    while left:
        receiver, sender = spawn.Pipe(duplex=False)
        process = spawn.Process(target=_work, args=(list(left.values()), sender), daemon=True)
        process.start()
        sender.close()
        for name, outcome in _received(receiver, list(left)):
            del left[name]
            yield name, outcome
        process.kill()
        process.join()


def _received(receiver: Connection, names: Sequence[str]) -> Iterator[tuple[str, Outcome]]:
    """What a worker reports, and the fate of the case that stopped it."""
    receiver.poll(None)  # the worker is ready, or dead
    for name in names:
        if not receiver.poll(SECONDS):
            yield name, Outcome(Kind.HUNG, f"no answer in {SECONDS:.0f} s")
            return
        try:
            yield name, receiver.recv()
        except EOFError:
            yield name, Outcome(Kind.CRASHED, "the process died")
            return


def _work(chosen: Sequence[Case], sender: Connection) -> None:
    speed.SECONDS = 0.02  # as in the process that tests
    for case in chosen:
        sender.send(outcome_of(*parts(case)))


def feeds_of(model: onnx.ModelProto, inputs: Sequence[object]) -> Feeds:
    """The inputs of a test by name."""
    return dict(zip((value.name for value in model.graph.input), map(_array, inputs), strict=False))


def outcome_of(model: onnx.ModelProto, inputs: Sequence[object], expected: Sequence[object] = ()) -> Outcome:
    """Compile a model calibrated on its inputs alone, but for what is not finite, and compare what comes out on them.

    expected: outputs to compare with where ONNX Runtime cannot run the model itself.
    """
    feeds = feeds_of(model, inputs)
    samples = [{name: _finite(value) for name, value in feeds.items()}] * SAMPLES
    with tempfile.TemporaryDirectory(prefix="ptqc-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        try:
            with quick():
                artifact = ptqc.compile(
                    path,
                    calibration=samples,
                    output=Path(folder) / "out",
                    cache=Path(folder) / "cache",
                    cast_double=True,
                )
        except PtqcError as error:
            return Outcome(Kind.REFUSED if error.exit_code == 2 else Kind.FAULT, str(error).removeprefix(f"{path}: "))
        except Exception as error:  # whatever else reaches the user is a finding
            return Outcome(Kind.FAULT, f"{type(error).__name__}: {error}")
        if any(node.op_type in RANDOM for node in model.graph.node):
            return Outcome(Kind.ACCEPTED)
        return compared(_wanted(model, feeds, expected), Runner(artifact.path).run(feeds))


def _wanted(model: onnx.ModelProto, feeds: Feeds, expected: Sequence[object]) -> Mapping[str, object]:
    try:
        return Runner(model).run(feeds)
    except Exception:  # it has no kernel for a type that the compiled model casts
        return dict(zip((value.name for value in model.graph.output), map(_array, expected), strict=True))


def _finite(value: object) -> object:
    """The value with zeros for what no calibration sample may hold."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return value
    return np.where(np.isfinite(value), value, 0).astype(value.dtype)


def _array(value: object) -> object:
    """Some cases give NumPy's scalars, or tensors of types that NumPy lacks; sequences stay as they are."""
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def compared(wanted: Mapping[str, object], result: Mapping[str, object]) -> Outcome:
    """Accepted where every output is as the original's."""
    for name, array in wanted.items():
        if problem := _difference(array, result[name]):
            return Outcome(Kind.WRONG, f"{name}: {problem}")
    return Outcome(Kind.ACCEPTED)


def _difference(wanted: object, result: object) -> str:
    if not isinstance(wanted, np.ndarray) or not isinstance(result, np.ndarray) or wanted.dtype == object:
        return "" if str(wanted) == str(result) else f"{result} instead of {wanted}"
    if wanted.shape != result.shape or wanted.dtype != result.dtype:
        return f"{result.dtype}{result.shape} instead of {wanted.dtype}{wanted.shape}"
    if wanted.dtype.kind != "f":
        wrong = int(np.count_nonzero(wanted != result))
        return f"{wrong} of {wanted.size} values" if wrong else ""
    a, b = wanted.astype(np.float64), result.astype(np.float64)
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(b[finite]).all():
        return "NaN or infinite in other places"
    error, size = (float(np.sqrt(np.square(v[finite]).sum())) for v in (a - np.where(finite, b, a), a))
    return f"{error / size:.1%} of its size" if error > TOLERANCE * size else ""


def main(names: Sequence[str]) -> None:
    """Print outcomes and shares."""
    counted = accepted = 0
    chosen = {name: cases()[name] for name in names}
    for name, result in outcomes(chosen):
        case = chosen[name]
        counts = is_counted(case)
        counted += counts
        accepted += counts and result.kind == Kind.ACCEPTED
        print(name, opset_of(case), counts, result.kind, result.detail.replace("\n", " "), sep="\t", flush=True)
    print(f"accepted: {accepted} of {counted} of opset {MIN_OPSET} to {MAX_OPSET} that pass in ONNX Runtime")


if __name__ == "__main__":
    main(sys.argv[1:] or list(cases()))
