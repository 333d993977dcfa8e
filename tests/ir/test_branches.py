import numpy as np
import pytest
from graphs import noise, parse
from rewriting import rewrite

from ptqc.ir.nodes import constant, inline_known_branches
from ptqc.passes.base import Probed
from ptqc.passes.canonicalize.fold_constants import FoldConstants

TWO = np.array([[1, 2], [3, 4]], np.float32)


IF = """g (float[N, 2] x, bool c) => (float[N, 2] y) {
    y = If(c) <
        then_branch = t () => (float[N, 2] a) {
            w = Constant <value = float[2, 2] {1, 2, 3, 4}> ()
            a = MatMul(x, w)
        },
        else_branch = e () => (float[N, 2] b) {
            w = Constant <value = float[2, 2] {1, 2, 3, 4}> ()
            v = Constant <value = float[2] {5, 6}> ()
            m = MatMul(x, w)
            b = Add(m, v)
        }>
}"""
LOOP = """g (float[N, 2] x, int64 n) => (float[N, 2] y) {
    go = Constant <value = bool {1}> ()
    y = Loop(n, go, x) <body = b (int64 i, bool d, float[N, 2] s) => (bool e, float[N, 2] t) {
        w = Constant <value = float[2, 2] {1, 2, 3, 4}> ()
        e = Identity(d)
        t = MatMul(s, w)
    }>
}"""
SCAN = """g (float[2] x, float[T, 2] s) => (float[2] y, float[T, 2] z) {
    y, z = Scan <num_scan_inputs = 1, body = b (float[2] h, float[2] i) => (float[2] k, float[2] o) {
        w = Constant <value = float[2] {1, 2}> ()
        p = Mul(h, w)
        k = Add(p, i)
        o = Neg(k)
    }> (x, s)
}"""


@pytest.mark.parametrize("taken", [True, False])
def test_constants_of_branches_become_those_of_the_model_equal_ones_once(taken: bool) -> None:
    model = parse(IF)
    rewrite(model, FoldConstants(), x=noise(3, 2), c=np.array(taken))
    left = [constant(value) for value in model.graph.initializers.values()]
    assert [array.tolist() for array in left if array is not None] == [TWO.tolist(), [5, 6]]
    assert not any(graph.initializers for graph in model.graph.subgraphs())


@pytest.mark.parametrize(
    ("graph", "feeds"),
    [(LOOP, {"x": noise(3, 2), "n": np.array(3)}), (SCAN, {"x": noise(2), "s": noise(4, 2, seed=1)})],
    ids=["Loop", "Scan"],
)
def test_constants_of_bodies_become_those_of_the_model(graph: str, feeds: dict[str, np.ndarray]) -> None:
    model = parse(graph)
    rewrite(model, FoldConstants(), **feeds)
    assert not any(graph.initializers for graph in model.graph.subgraphs())
    assert "w" in model.graph.initializers


def test_a_constant_that_a_branch_gives_stays_in_it() -> None:
    graph = """g (float[2] x, bool c) => (float[2] y) {
        y = If(c) <then_branch = t () => (float[2] a) { a = Constant <value = float[2] {1, 2}> () },
                   else_branch = e () => (float[2] b) { b = Neg(x) }>
    }"""
    model = parse(graph)
    rewrite(model, FoldConstants(), x=noise(2), c=np.array(True))
    assert "a" not in model.graph.initializers


def test_strings_stay_where_they_are() -> None:
    graph = """g (float[N, 2] x, bool c) => (string[2] y) {
        y = If(c) <then_branch = t () => (string[2] a) { s = Constant <value_strings = ["p", "q"]> () a = Identity(s) },
                   else_branch = e () => (string[2] b) { b = Cast <to = 8> (v) }>
    }"""
    model = parse(graph, v=noise(2))
    FoldConstants().apply(Probed(model))
    assert list(model.graph.initializers) == ["v"]


def test_large_branches_are_moved_in_little_time() -> None:
    count = 1500

    def branch(name: str) -> str:
        nodes = "".join(f"a{i + 1} = Neg(a{i}) " for i in range(count))
        return f"{name} () => (float[2] a{count}) {{ a0 = Neg(x) {nodes} }}"

    graph = f"""g (float[2] x) => (float[2] y) {{
        a1 = Abs(x) b = If(c) <then_branch = {branch("t")}, else_branch = {branch("e")}> y = Add(a1, b)
    }}"""
    model = parse(graph, c=np.array(True))
    assert inline_known_branches(model)
    names = [node.outputs[0].name for node in model.graph]
    assert names == ["a1", *(f"a{i}_1" for i in range(count)), f"a{count}_1", "y"]
