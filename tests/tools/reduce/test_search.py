"""Which part is found, with failures that are looked up in the graph."""

from collections.abc import Callable

import onnx
import pytest
from wholes import whole

from ptqc.tools.reduce.cut import Subgraph
from ptqc.tools.reduce.search import smallest

Fails = Callable[[onnx.GraphProto], bool]


def found(fails: Fails) -> onnx.GraphProto:
    graph = whole()

    def asked(cut: Subgraph) -> bool:
        model = graph.model(cut)
        return model is not None and fails(model.graph)

    model = graph.model(smallest(graph, asked))
    assert model is not None
    return model.graph


def operators(graph: onnx.GraphProto) -> list[str]:
    return [node.op_type for node in graph.node]


@pytest.mark.parametrize("operator", ["Gemm", "Relu", "Add", "Sigmoid"])
def test_one_node(operator: str) -> None:
    assert operators(found(lambda graph: operator in operators(graph))) == [operator]


def test_two_nodes_apart() -> None:
    assert operators(found(lambda graph: {"Relu", "Sigmoid"} <= set(operators(graph)))) == ["Relu", "Sigmoid"]


def test_nodes_between_two_are_bypassed() -> None:
    def fails(graph: onnx.GraphProto) -> bool:
        """The result of a Relu reaches a Sigmoid, whatever lies between."""
        reached: set[str] = set()
        for node in graph.node:
            if node.op_type == "Relu" or reached.intersection(node.input):
                reached.update(node.output)
        return any(node.op_type == "Sigmoid" and node.output[0] in reached for node in graph.node)

    graph = found(fails)
    assert operators(graph) == ["Relu", "Sigmoid"]
    assert graph.node[1].input == graph.node[0].output


def test_outputs_that_do_not_matter_are_left_out() -> None:
    graph = found(lambda graph: {"Relu", "Add"} <= set(operators(graph)) and "s" in {v.name for v in graph.output})
    assert [value.name for value in graph.output] == ["s"]


def test_what_needs_all_of_it_stays() -> None:
    assert len(found(lambda graph: len(graph.node) == 5).node) == 5
