import numpy as np
import pytest
from graphs import noise, parse
from rewriting import operators, rewrite

from ptqc.execution.onnxruntime import run
from ptqc.ir import nodes as graph_tools
from ptqc.ir.nodes import constant
from ptqc.passes.base import Probed
from ptqc.passes.canonicalize.fold_constants import FoldConstants

ONE = np.array([1])


def test_pads_of_a_pytorch_export_become_one_constant() -> None:
    graph = """g (float[N, 1, 4, 4] x) => (float[N, 1, H, W] y) {
        given = Constant <value = int64[4] {1, 1, 0, 2}> ()
        length = Constant <value = int64[1] {4}> ()
        zeros = ConstantOfShape <value = int64[1] {0}> (length)
        all = Concat <axis = 0> (given, zeros)
        pairs = Constant <value = int64[2] {-1, 2}> ()
        table = Reshape(all, pairs)
        start = Constant <value = int64[1] {-1}> ()
        end = Constant <value = int64[1] {-9223372036854775807}> ()
        axis = Constant <value = int64[1] {0}> ()
        turned = Slice(table, start, end, axis, start)
        swapped = Transpose <perm = [1, 0]> (turned)
        flat = Constant <value = int64[1] {-1}> ()
        listed = Reshape(swapped, flat)
        pads = Cast <to = 7> (listed)
        y = Pad(x, pads)
    }"""
    model = parse(graph)
    rewrite(model, FoldConstants(), x=noise(2, 1, 4, 4))
    assert operators(model) == ["Pad"]
    pads = constant(model.graph[0].inputs[1])
    assert pads is not None
    assert pads.tolist() == [0, 0, 0, 1, 0, 0, 2, 1]


def test_many_constants_do_not_ask_for_all_names_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """That would take the square of the size of the graph: minutes where thousands of nodes are folded."""
    nodes = "".join(f"s{i} = Shape(x) g{i} = Gather(s{i}, one) n{i} = Neg(g{i})" for i in range(5))
    model = parse(f"g (float[N, 4] x) => (int64[5] y) {{ {nodes} y = Concat<axis = 0>(n0, n1, n2, n3, n4) }}", one=ONE)
    monkeypatch.setattr(graph_tools, "names_of", None)
    FoldConstants().apply(Probed(model))
    assert operators(model) == ["Concat"]
    assert len(set(model.graph.initializers)) == 5


def test_known_shapes_are_folded_and_symbolic_ones_stay() -> None:
    graph = """g (float[N, 4] x) => (int64[1] known, int64[1] batch) {
        s = Shape(x)
        first = Constant <value = int64[1] {1}> ()
        zero = Constant <value = int64[1] {0}> ()
        k = Gather(s, first)
        known = Add(k, first)
        b = Gather(s, zero)
        batch = Add(b, first)
    }"""
    model = parse(graph)
    rewrite(model, FoldConstants(), x=noise(3, 4))
    assert operators(model).count("Gather") == 1


def test_identity_and_dropout_go() -> None:
    graph = "g (float[N] x) => (float[N] y) { a = Identity(x)  b = Dropout(a)  c = Relu(b)  y = Identity(c) }"
    model = parse(graph)
    rewrite(model, FoldConstants(), x=noise(3))
    assert operators(model) == ["Relu"]
    assert model.graph[0].outputs[0].name == "y"


def test_a_constant_condition_picks_its_branch() -> None:
    graph = """g (float[N] x) => (float[N] y) {
        one = Constant <value = int64[1] {1}> ()
        c = Equal(one, one)
        h = If(c) <then_branch = t () => (float[N] a) { a = Neg(x) },
                   else_branch = e () => (float[N] b) { b = Abs(x) }>
        y = Relu(h)
    }"""
    model = parse(graph)
    rewrite(model, FoldConstants(), x=noise(3))
    assert operators(model) == ["Neg", "Relu"]


def test_a_branch_may_give_an_outer_value_and_reuse_names() -> None:
    graph = """g (float[N] x) => (float[N] y, float[N] z) {
        yes = Constant <value = bool {1}> ()
        no = Constant <value = bool {0}> ()
        y = If(yes) <then_branch = t () => (float[N] a) { one = Constant <value = float {1}> ()  a = Add(x, one) },
                     else_branch = e () => (float[N] a) { a = Abs(x) }>
        z = If(no) <then_branch = t () => (float[N] a) { a = Neg(x) },
                    else_branch = e () => (float[N] a) { a = Identity(x) }>
    }"""
    model = parse(graph)
    rewrite(model, FoldConstants(), x=noise(3))
    assert operators(model) == ["Add", "Identity"]


def test_branches_of_an_unknown_condition_stay() -> None:
    graph = """g (float[N] x, bool c) => (float[N] y) {
        y = If(c) <then_branch = t () => (float[N] a) { one = Constant <value = float {1}> ()  a = Add(x, one) },
                   else_branch = e () => (float[N] a) { a = Identity(x) }>
    }"""
    model = parse(graph)
    rewrite(model, FoldConstants(), x=noise(3), c=np.array(True))
    assert [node.op_type for node in model.graph.all_nodes()] == ["If", "Add", "Identity"]


@pytest.mark.parametrize(
    ("take", "folded"),
    [
        ("Shape <start = 1> (x)", True),
        ("Shape <start = -1, end = 3> (x)", True),
        ("Shape <end = 2> (x)", False),
        ("Slice(s, one, three)", True),
        ("Slice(s, zero, one)", False),
        ("Gather(s, last)", True),
        ("Gather(s, zero)", False),
    ],
)
def test_sizes_taken_from_a_shape(take: str, folded: bool) -> None:
    graph = f"g (float[N, 4, 5] x) => (int64[M] y) {{ s = Shape(x)  t = {take}  y = Add(t, one) }}"
    numbers = {"zero": [0], "one": [1], "three": [3], "last": [-1]}
    model = parse(graph, **{name: np.array(value) for name, value in numbers.items()})
    rewrite(model, FoldConstants(), x=noise(3, 4, 5))
    assert (operators(model) == ["Add"]) == folded


def test_sequences_are_left_alone() -> None:
    graph = """g (float[N, 4] x) => (float[N, 4] y) {
        s = SequenceConstruct(x, x)
        kept = Identity(s)
        zero = Constant <value = int64 {0}> ()
        y = SequenceAt(kept, zero)
    }"""
    model = parse(graph)
    rewrite(model, FoldConstants(), x=noise(3, 4))
    assert operators(model) == ["SequenceConstruct", "SequenceAt"]


def test_range_gets_scalars() -> None:
    # The shape of t, and so of its size, is not known before the folding; ONNX Runtime accepts that it is a vector.
    graph = """g (float[N, 4] x) => (int64[M] y) {
        shape = Concat <axis = 0> (four, one)
        t = Reshape(x, shape)
        s = Shape(t)
        f = Gather(s, where)
        y = Range(zero, f, step)
    }"""
    numbers = {"four": [-1], "one": [2], "where": [1], "zero": 0, "step": 1}
    model = parse(graph, **{name: np.array(value) for name, value in numbers.items()})
    FoldConstants().apply(Probed(model))
    assert run(model, {"x": noise(3, 4)})["y"].tolist() == [0, 1]


def test_nothing_large_is_created() -> None:
    graph = """g (float[1, 1] x) => (float[A, B] y) {
        huge = ConstantOfShape(shape)
        y = Add(huge, x)
    }"""
    model = parse(graph, shape=np.array([1024, 1024]))
    rewrite(model, FoldConstants(), x=noise(1, 1))
    assert operators(model) == ["ConstantOfShape", "Add"]


FILTERS = """g (float[N, 64] x) => (float[N, W] y, float[N, V] z) {
    empty = ConstantOfShape <value = float[1] {0}> (length)
    filled = ScatterElements <axis = 0> (empty, places, values)
    filters = Reshape(filled, shape)
    y = MatMul(x, filters)
    z = MatMul(x, w)
}"""


@pytest.mark.parametrize(("width", "others", "folded"), [(256, 1, True), (320, 1, False), (320, 640, True)])
def test_constants_do_not_grow_beyond_what_the_model_has(width: int, others: int, folded: bool) -> None:
    model = parse(
        FILTERS,
        length=np.array([64 * width]),
        places=np.arange(0, 64 * width, 97),
        values=noise(len(range(0, 64 * width, 97))),
        shape=np.array([64, width]),
        w=noise(64, others),
    )
    rewrite(model, FoldConstants(), x=noise(1, 64))
    assert ("ScatterElements" not in operators(model)) == folded


def test_a_bomb_is_not_computed() -> None:
    model = parse(
        "g (float[1] x) => (float[A] y) { huge = Expand(one, n)  y = Add(huge, x) }",
        one=noise(1),
        n=np.array([1 << 40]),
    )
    FoldConstants().apply(Probed(model))
    assert operators(model) == ["Expand", "Add"]


def test_a_large_weight_is_transposed_in_place() -> None:
    model = parse("g (float[N, 600] x) => (float[N, 600] y) { t = Transpose(w)  y = MatMul(x, t) }", w=noise(600, 600))
    rewrite(model, FoldConstants(), x=noise(2, 600))
    assert operators(model) == ["MatMul"]


def test_random_numbers_stay_random() -> None:
    model = parse("g (float[3] x) => (float[3] y) { r = RandomNormal <shape = [3]> ()  y = Add(x, r) }")
    FoldConstants().apply(Probed(model))
    assert operators(model) == ["RandomNormal", "Add"]


def test_a_shared_constant_stays_shared() -> None:
    model = parse("g (float[N, 3] x) => (float[N, 3] y) { a = MatMul(x, w)  y = MatMul(a, w) }", w=noise(3, 3))
    rewrite(model, FoldConstants(), x=noise(2, 3))
    assert list(model.graph.initializers) == ["w"]


def test_a_cast_to_a_known_type_reads_nothing_else() -> None:
    """So that a weight in half precision becomes a constant of float32."""
    graph = "g (float[N, 4] x) => (float[N, 3] y) { c = CastLike(w, x)  y = MatMul(x, c) }"
    model = parse(graph, w=noise(4, 3).astype(np.float16))
    rewrite(model, FoldConstants(), x=noise(2, 4))
    assert operators(model) == ["MatMul"]
    assert constant(model.graph[0].inputs[1]).dtype == np.float32  # type: ignore[union-attr]
