from itertools import islice

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper, parser

from ptqc.codegen.onnxruntime.names import FIRST, LATER, name_length, short_names, shorten


@pytest.mark.parametrize("length", [1, 2, 3])
def test_names_are_short_distinct_and_legal(length: int) -> None:
    taken = frozenset(("a", "b", "aa", "baa"))
    result = list(islice(short_names(length, taken), 5000))
    assert len(set(result)) == 5000
    assert not taken.intersection(result)
    assert all(name.isidentifier() and len(name) >= length for name in result)
    assert len(result[0]) == length


@given(st.integers(1, 200_000))
def test_length_for_a_number_of_names(values: int) -> None:
    length = name_length(values)
    assert len(FIRST) * len(LATER) ** (length - 1) >= values
    assert length == 1 or len(FIRST) * len(LATER) ** (length - 2) < values


@pytest.mark.parametrize("length", [1, 2])
def test_all_names_of_the_length_come_before_longer_ones(length: int) -> None:
    room = len(FIRST) * len(LATER) ** (length - 1)
    result = list(islice(short_names(length, frozenset()), room + 1))
    assert {len(name) for name in result[:-1]} == {length}
    assert len(result[-1]) == length + 1


TEXT = """<ir_version: 8, opset_import: ["": 18]>
g (float[N] input, bool c) => (float[N] output)
<float[N] inner>
{
    [first] inner = Mul(input, weight)
    part, missing, other = Made (inner, , input)
    output = If (c) <
        then_branch = then () => (float[N] result) { twice = Add(inner, inner) result = Mul(twice, weight) },
        else_branch = other () => (float[N] result) { result = Neg(part) }
    >
}"""


@pytest.fixture
def graph() -> onnx.GraphProto:
    model = parser.parse_model(TEXT)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "weight"))
    model.graph.node[0].doc_string = "from somewhere"
    return model.graph


def test_everything_but_the_interface_is_renamed(graph: onnx.GraphProto) -> None:
    shorten(graph, 1)
    assert [value.name for value in (*graph.input, *graph.output)] == ["input", "c", "output"]
    mul, made, choice = graph.node
    assert list(mul.input) == ["input", graph.initializer[0].name]
    assert list(made.input) == [mul.output[0], "", "input"]
    assert (choice.input[0], choice.output[0]) == ("c", "output")
    names = [graph.initializer[0].name, *mul.output, *made.output]
    assert len(set(names)) == 5
    assert all(len(name) == 1 for name in names)
    assert not graph.value_info
    assert (mul.name, mul.doc_string) == ("", "")


def test_the_shortest_names_go_to_what_stands_there_most_often(graph: onnx.GraphProto) -> None:
    shorten(graph, 2, varying={"part"})
    mul, made, choice = graph.node
    then, otherwise = (attribute.g for attribute in choice.attribute)
    assert (mul.output[0], graph.initializer[0].name) == ("a", "b")
    assert otherwise.node[0].input[0] == made.output[0]
    assert [len(name) for name in (*made.output, then.node[0].output[0])] == [2, 1, 1, 1]


def test_subgraphs_are_renamed_alike(graph: onnx.GraphProto) -> None:
    shorten(graph, 1)
    inner, weight, part = graph.node[0].output[0], graph.initializer[0].name, graph.node[1].output[0]
    branches = {attribute.name: attribute.g for attribute in graph.node[2].attribute}
    twice, result = branches["then_branch"].node
    assert list(twice.input) == [inner, inner]
    assert list(result.input) == [twice.output[0], weight]
    assert branches["then_branch"].output[0].name == result.output[0]
    assert list(branches["else_branch"].node[0].input) == [part]
    assert branches["else_branch"].output[0].name == branches["else_branch"].node[0].output[0]


def test_names_of_the_interface_are_not_given_again(graph: onnx.GraphProto) -> None:
    graph.input[0].name = graph.node[0].input[0] = graph.node[1].input[2] = "a"
    shorten(graph, 1)
    assert "a" not in {name for node in graph.node for name in node.output} | {graph.initializer[0].name}


SPLIT = """<ir_version: 8, opset_import: ["": 18]>
g (float[N, 2] x, float[N, 2] z, bool c) => (float[N] y) {
    a = Gather <axis = 1> (x, first)
    b = Slice(x, start, stop, one)
    d = Gather <axis = 1> (z, first)
    e = Gather <axis = 1> (z, last)
    lone = Gather <axis = 1> (e, first)
    y = If (c) <
        then_branch = then () => (float[N] t) {
            f = Gather <axis = 1> (x, first) g = Gather <axis = 1> (x, last) h = Add(f, g)
            i = Gather <axis = 1> (z, first) j = Gather <axis = 1> (z, last) k = Add(i, j) t = Add(h, k)
        },
        else_branch = other () => (float[N] u) {
            l = Gather <axis = 1> (x, first) m = Gather <axis = 1> (x, last) u = Add(l, m)
        }
    >
}"""


def test_nodes_that_two_fusions_could_call_alike_have_names_of_their_own() -> None:
    graph = parser.parse_model(SPLIT).graph
    shorten(graph, 1)
    then, other = (attribute.g for attribute in graph.node[-1].attribute)
    assert [bool(node.name) for node in graph.node] == [True] * 4 + [False] * 2
    assert [node.op_type for node in then.node if node.name] == ["Gather"] * 4
    assert not any(node.name for node in other.node)
    names = [node.name for node in (*graph.node, *then.node) if node.name]
    assert len(set(names)) == 8
    assert {len(name) for name in names} == {1}
