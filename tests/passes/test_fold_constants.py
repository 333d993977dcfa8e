import numpy as np
from rewriting import noise, operators, parse, rewrite

from ptqc.passes.fold_constants import FoldConstants
from ptqc.passes.graph_tools import constant


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
    assert constant(model.graph[0].inputs[1]).tolist() == [0, 0, 0, 1, 0, 0, 2, 1]


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


def test_nothing_large_is_created() -> None:
    graph = """g (float[1, 1] x) => (float[A, B] y) {
        huge = ConstantOfShape(shape)
        y = Add(huge, x)
    }"""
    model = parse(graph, shape=np.array([1024, 1024]))
    rewrite(model, FoldConstants(), x=noise(1, 1))
    assert operators(model) == ["ConstantOfShape", "Add"]


def test_a_bomb_is_not_computed() -> None:
    model = parse(
        "g (float[1] x) => (float[A] y) { huge = Expand(one, n)  y = Add(huge, x) }",
        one=noise(1),
        n=np.array([1 << 40]),
    )
    FoldConstants().apply(model, None)
    assert operators(model) == ["Expand", "Add"]


def test_a_large_weight_is_transposed_in_place() -> None:
    model = parse("g (float[N, 600] x) => (float[N, 600] y) { t = Transpose(w)  y = MatMul(x, t) }", w=noise(600, 600))
    rewrite(model, FoldConstants(), x=noise(2, 600))
    assert operators(model) == ["MatMul"]


def test_random_numbers_stay_random() -> None:
    model = parse("g (float[3] x) => (float[3] y) { r = RandomNormal <shape = [3]> ()  y = Add(x, r) }")
    FoldConstants().apply(model, None)
    assert operators(model) == ["RandomNormal", "Add"]


def test_a_shared_constant_stays_shared() -> None:
    model = parse("g (float[N, 3] x) => (float[N, 3] y) { a = MatMul(x, w)  y = MatMul(a, w) }", w=noise(3, 3))
    rewrite(model, FoldConstants(), x=noise(2, 3))
    assert list(model.graph.initializers) == ["w"]
