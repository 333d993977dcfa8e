"""The census reads from ONNX Runtime's own optimized graph which planned nodes became integer kernels."""

import onnx
import pytest
from compiling import measure_residual

from ptqc.codegen.onnxruntime.verify import take
from ptqc.passes.allocate.state import QuantizedModel

KERNELS = {
    "a": "QLinearConv",
    "b": "QLinearConv",
    "c": "QLinearConv",
    "cs": "QLinearAdd",
    "p": "QLinearGlobalAveragePool",
    "y": "QGemm",
}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> QuantizedModel:
    return measure_residual(tmp_path_factory.mktemp("residual"), bits=(4,)).fit()


def expected(fitted: QuantizedModel) -> dict[str, tuple[str, str]]:
    return {
        name: (kernel.op_type, fitted.exported.renamed[fitted.lowered.codes.get(kernel.output, kernel.output)])
        for name, kernel in fitted.plan.integer.items()
    }


def test_all_planned_nodes_are_integer_kernels(fitted: QuantizedModel) -> None:
    census = take(fitted.exported.proto, expected(fitted))
    assert sorted(expected(fitted)) == sorted(KERNELS)
    assert census.missed == {}
    assert {kernel: list(KERNELS.values()).count(kernel) for kernel in KERNELS.values()}.items() <= (
        census.operators.items()
    )


def test_the_file_is_not_changed(fitted: QuantizedModel) -> None:
    before = fitted.exported.data
    take(fitted.exported.proto, expected(fitted))
    assert fitted.exported.data == before


@pytest.mark.parametrize(("op_type", "number", "missed"), [("Conv", 1, "b"), ("GlobalAveragePool", 0, "p")])
def test_a_node_that_computes_in_float_is_missed(
    fitted: QuantizedModel, op_type: str, number: int, missed: str
) -> None:
    """An operator without an integer kernel between the codes and the node breaks the pattern."""
    proto = onnx.ModelProto.FromString(fitted.exported.data)
    node = [node for node in proto.graph.node if node.op_type == op_type][number]
    place = list(proto.graph.node).index(node)
    proto.graph.node.insert(place, onnx.helper.make_node("Sin", [node.input[0]], ["in_float"]))
    node.input[0] = "in_float"
    assert take(proto, expected(fitted)).missed == {missed: op_type}


def test_a_node_is_held_to_its_own_operator(fitted: QuantizedModel) -> None:
    """QLinearConv is an integer kernel, but not of an Add."""
    wrong = {**expected(fitted), "a": ("Add", expected(fitted)["a"][1])}
    assert take(fitted.exported.proto, wrong).missed == {"a": "QLinearConv"}
