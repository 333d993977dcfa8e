"""Every operator in torch against the node tests that come with onnx, collected in this process."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.backend.test.case.test_case import TestCase as Case

torch = pytest.importorskip("torch", reason="torch is not installed")

from ptqc.execution.torch.graph import TorchGraph, unsupported  # noqa: E402
from ptqc.execution.torch.operators import OPERATORS  # noqa: E402
from ptqc.execution.torch.types import DTYPES, tensor_of  # noqa: E402

OLDEST_OPSET = 13
HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)  # onnx rounds them between steps where torch does not
# Configurations that torch has no counterpart for, by operator.
REFUSED = {"BatchNormalization", "Dropout", "MaxPool", "Resize"}
# ONNX Runtime differs from onnx in the first two as well; the third is given with four digits.
DIFFERENT = {
    "test_resize_downsample_scales_cubic_align_corners",
    "test_resize_downsample_scales_linear_align_corners",
    "test_averagepool_2d_ceil_last_window_starts_on_pad",
    # torch has no largest entry of none.
    "test_reduce_max_empty_set",
    "test_reduce_max_empty_set_bool",
    "test_reduce_min_empty_set",
}

UNSEEN = {"GlobalLpPool"}  # onnx has no case for it; test_torch_models.py has


@dataclass(frozen=True)
class Outcomes:
    """Names of the cases that gave what onnx expects; what went wrong in others; nodes refused; operators seen."""

    same: list[str]
    different: dict[str, str]
    refused: dict[str, str]
    operators: set[str]


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Starting threads takes longer than the small tensors here."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def outcomes(one_thread: None) -> Outcomes:  # noqa: ARG001
    result = Outcomes([], {}, {}, set())
    for case in runnable_cases():
        assert case.model is not None
        model = ir.from_proto(case.model)
        if nodes := unsupported(model):
            result.refused[case.name] = nodes[0].op_type
            continue
        try:
            for feeds, expected in case.data_sets or ():
                compare(TorchGraph(model), feeds, expected)
        except Exception as error:  # whatever torch raises is a finding
            result.different[case.name] = f"{type(error).__name__}: {error}"
        else:
            result.same.append(case.name)
            result.operators.update(node.op_type for node in model.graph)
    return result


def runnable_cases() -> list[Case]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases themselves divide by zero, overflow, and use deprecated names
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
    return [case for case in cases if case.model is not None and is_runnable(case)]


def is_runnable(case: Case) -> bool:
    """Whether all operators are known, and all values of types that torch computes with."""
    assert case.model is not None
    model, graph = case.model, case.model.graph
    opset = max((entry.version for entry in model.opset_import if not entry.domain), default=0)
    types = [value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)]
    known = all(node.op_type in {*OPERATORS, "Constant"} and is_current(node.op_type, opset) for node in graph.node)
    return known and all(type_ in set(DTYPES) - set(HALVES) for type_ in types)


def is_current(operator: str, opset: int) -> bool:
    """Whether the operator means in this opset what it means in one that models in normal form have."""
    return bool(onnx.defs.get_schema(operator, max(opset, OLDEST_OPSET)).since_version <= opset)


def compare(graph: TorchGraph, feeds: Sequence[object], expected: Sequence[object]) -> None:
    values = {name: tensor_of(array_of(value)) for name, value in zip(graph.inputs, feeds, strict=True)}
    results = graph.run(values)
    for result, wanted in zip((results[name].numpy() for name in graph.outputs), map(array_of, expected), strict=True):
        assert (result.dtype, result.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)


def array_of(value: object) -> np.ndarray:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


@pytest.mark.long
def test_results_are_those_of_onnx(outcomes: Outcomes) -> None:
    assert {name: text for name, text in outcomes.different.items() if name not in DIFFERENT} == {}
    assert len(outcomes.same) > 700


@pytest.mark.long
def test_few_configurations_are_refused(outcomes: Outcomes) -> None:
    assert set(outcomes.refused.values()) <= REFUSED
    assert len(outcomes.refused) < len(outcomes.same) / 40


def test_every_operator_was_compared(outcomes: Outcomes) -> None:
    assert set(OPERATORS) - outcomes.operators <= UNSEEN
