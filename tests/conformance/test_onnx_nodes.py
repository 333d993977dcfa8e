"""onnx's own node tests: accepted and right, or refused as listed; the harness finds what is planted."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from compiling import proto, weight
from onnx_nodes import Case, Kind, Outcome, cases, compared, is_counted, outcome_of, outcomes, parts, some_cases

import ptqc

Arrays = Sequence[np.ndarray]

LIST = Path(__file__).with_name("onnx_nodes_refused.txt")
# Of the normal run: names of cases, and of the modules of onnx that make them.
SAMPLE = {
    "test_abs": "abs",
    "test_cast_INT2_to_FLOAT16": "cast",
    "test_gathernd_example_int32_batch_dim1": "gathernd",
    "test_nllloss_NCd1d2_no_weight_reduction_mean_ii": "negativeloglikelihoodloss",
    "test_sequence_map_add_1_sequence_1_tensor": "sequence_map",
    "test_shape_start_greater_than_end": "shape",
    "test_split_to_sequence_2": "splittosequence",
}
SHARE = 0.975  # of those of accepted opsets that are right in ONNX Runtime itself


def expected() -> set[str]:
    """Names of the cases that are refused; skips where onnx or ONNX Runtime are not those of the list."""
    lines = LIST.read_text(encoding="utf-8").split("\n")
    versions = f"# onnx {onnx.__version__}, onnxruntime {ort.__version__}"
    if lines[0] != versions:
        pytest.skip(f"the list is of {lines[0]}, installed are {versions}")
    return {line for line in lines[1:] if line}


def test_a_sample_comes_out_as_listed() -> None:
    refused = expected()
    result = {name: outcome_of(*parts(case)) for name, case in some_cases(SAMPLE).items()}
    wanted = {name: Kind.REFUSED if name in refused else Kind.ACCEPTED for name in result}
    assert {name: outcome for name, outcome in result.items() if outcome.kind != wanted[name]} == {}


@pytest.mark.slow
def test_all_come_out_as_listed() -> None:
    refused = expected()
    result = dict(outcomes(cases()))
    counted = Counter(result[name].kind for name, case in cases().items() if is_counted(case))
    print(f"all: {Counter(outcome.kind for outcome in result.values())}, counted: {counted}")
    assert {name: o for name, o in result.items() if o.kind not in (Kind.ACCEPTED, Kind.REFUSED)} == {}
    now = {name for name, outcome in result.items() if outcome.kind == Kind.REFUSED}
    assert (sorted(now - refused), sorted(refused - now)) == ([], []), "update onnx_nodes_refused.txt if this is meant"
    assert counted[Kind.ACCEPTED] >= SHARE * counted.total()


# The harness finds what is planted


def gemm() -> onnx.ModelProto:
    return proto("g (float[N,8] x) => (float[N,8] y) { y = Gemm(x, w) }", w=weight(8, 8))


def case(
    name: str, model: onnx.ModelProto | None, inputs: list[np.ndarray], expected: Sequence[np.ndarray] = ()
) -> Case:
    return Case(name, name, None, None, model, [(inputs, expected)], "node", 1e-3, 1e-7)


def test_a_right_compile_is_accepted() -> None:
    assert outcome_of(gemm(), [np.ones((2, 8), np.float32)]) == Outcome(Kind.ACCEPTED)


def test_a_silently_wrong_compile_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ptqc.compile

    def compile_another(path: Path, **options: object) -> ptqc.Artifact:
        model = onnx.load(path)
        model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight(8, 8, seed=1), "w"))
        onnx.save(model, path)
        return right(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(ptqc, "compile", compile_another)
    assert outcome_of(gemm(), [np.ones((2, 8), np.float32)]).kind == Kind.WRONG


def test_an_unexpected_exception_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptqc.passes.analyze.measure", lambda *_: 1 / 0)
    assert outcome_of(gemm(), [np.ones((2, 8), np.float32)]).kind == Kind.FAULT


@pytest.mark.slow
def test_a_worker_that_dies_is_an_outcome() -> None:
    sound = case("sound", gemm(), [np.ones((2, 8), np.float32)])
    result = dict(outcomes({"planted": case("planted", None, []), "sound": sound}))
    assert [outcome.kind for outcome in result.values()] == [Kind.CRASHED, Kind.ACCEPTED]


@pytest.mark.parametrize(("opset", "answer", "counts"), [(18, 1.0, True), (18, 2.0, False), (6, 1.0, False)])
def test_a_share_counts_what_is_right_in_onnxruntime(opset: int, answer: float, counts: bool) -> None:
    model = proto("g (float[2] x) => (float[2] y) { y = Abs(x) }", opset)
    inputs, expected = [np.full(2, -1, np.float32)], [np.full(2, answer, np.float32)]
    assert is_counted(case("abs", model, inputs, expected)) == counts


@pytest.mark.parametrize("result", [[1.0, 2.0, 4.0], [1.0, np.nan, 3.0], [1.0, 2.0, np.inf]])
def test_other_values_are_found(result: list[float]) -> None:
    wanted = {"y": np.array([1, 2, 3], np.float32)}
    assert compared(wanted, wanted).kind == Kind.ACCEPTED
    assert compared(wanted, {"y": np.array(result, np.float32)}).kind == Kind.WRONG


def test_other_types_and_shapes_are_found() -> None:
    wanted = {"y": np.array([1, 2, 3], np.float32)}
    assert compared(wanted, {"y": np.array([1, 2, 3], np.float64)}).kind == Kind.WRONG
    assert compared(wanted, {"y": np.array([[1, 2, 3]], np.float32)}).kind == Kind.WRONG
    assert compared({"y": np.array([1, 2])}, {"y": np.array([1, 3])}).kind == Kind.WRONG
