"""Parts of a graph as models: what they read, what they give, and that both run."""

from itertools import combinations

import numpy as np
import onnx
import pytest
from compiling import proto, weight
from wholes import GRAPH, whole

from ptqc.execution.onnxruntime import Runner
from ptqc.tools.reduce.cut import Subgraph, Whole


def names(values: object) -> list[str]:
    return [value.name for value in values]  # type: ignore[attr-defined]


def test_all_of_it_is_the_model() -> None:
    model = whole().model(whole().all())
    assert model is not None
    onnx.checker.check_model(model, full_check=True)
    assert (names(model.graph.input), names(model.graph.output)) == (["x"], ["r", "y"])


def test_what_is_cut_off_becomes_an_input_and_what_was_read_an_output() -> None:
    model = whole().model(Subgraph((2,)))
    assert model is not None
    assert (names(model.graph.input), names(model.graph.output)) == (["h", "r"], ["s"])
    assert not model.graph.initializer


def test_every_part_runs() -> None:
    for count in range(1, 6):
        for nodes in combinations(range(5), count):
            model = whole().model(Subgraph(nodes))
            assert model is not None
            feeds = {name: np.ones((2, 8), np.float32) for name in names(model.graph.input)}
            assert len(Runner(model).run(feeds)) == len(model.graph.output)


def test_a_node_that_is_bypassed_gives_its_input() -> None:
    result = list(whole().bypasses(Subgraph((0, 1, 2))))
    assert [(cut.nodes, cut.instead) for cut in result] == [
        ((1, 2), {"h": "x"}),
        ((0, 2), {"r": "h"}),
        ((0, 1), {"s": "r"}),
        ((0, 1), {"s": "h"}),
    ]
    model = whole().model(result[1])
    assert model is not None
    assert list(model.graph.node[1].input) == ["h", "h"]


def test_bypasses_add_up() -> None:
    cut = Subgraph((2, 3), {"r": "h", "h": "x"})
    model = whole().model(cut)
    assert model is not None
    assert (names(model.graph.input), list(model.graph.node[0].input)) == (["x"], ["x", "x"])


def test_an_output_can_be_left_out_where_something_else_reads_it() -> None:
    assert whole().outputs(whole().all()) == ["r", "y"]
    assert whole().outputs(Subgraph((0, 1, 2, 3, 4), hidden=frozenset(("r", "y")))) == ["y"]


def test_what_a_graph_inside_a_node_reads_is_read() -> None:
    branch = """g (float[N,8] x, bool c) => (float[N,8] y) {
        h = Relu(x)
        k = Neg(h)
        y = If(c) <then_branch = t () => (float[N,8] b) { b = Abs(k) },
                   else_branch = e () => (float[N,8] d) { d = Identity(h) }>
    }"""
    assert whole(branch).inputs(Subgraph((2,))) == ["c", "h", "k"]
    assert whole(branch).model(Subgraph((0, 2), {"k": "h"})) is None  # its name is inside


def test_a_value_of_unknown_type_cannot_be_an_input() -> None:
    model = proto(GRAPH, w=weight(8, 8))
    known = Whole(model, {value.name: value for value in (*model.graph.input, *model.graph.output)})
    assert known.model(Subgraph((1, 2, 3, 4))) is None
    assert known.model(known.all()) is not None


@pytest.mark.parametrize("nodes", [(0,), (3, 4)])
def test_only_the_constants_that_are_read_are_kept(nodes: tuple[int, ...]) -> None:
    model = whole().model(Subgraph(nodes))
    assert model is not None
    assert names(model.graph.initializer) == ["w"]
