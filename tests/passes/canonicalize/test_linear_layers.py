import pytest
from graphs import noise, parse
from rewriting import operators, rewrite

from ptqc.ir.layers import find_layers
from ptqc.passes.canonicalize.linear_layers import LinearLayers


@pytest.mark.parametrize("add", ["Add(h, b)", "Add(b, h)"])
@pytest.mark.parametrize("shape", [(3,), (1, 3)])
def test_matmul_and_bias_become_gemm(add: str, shape: tuple[int, ...]) -> None:
    model = parse(
        f"g (float[N, 4] x) => (float[N, 3] y) {{ h = MatMul(x, w)  y = {add} }}", w=noise(4, 3), b=noise(*shape)
    )
    rewrite(model, LinearLayers(), x=noise(2, 4))
    assert operators(model) == ["Gemm"]


def test_other_ranks_stay_with_a_reason() -> None:
    graph = "g (float[N, T, 4] x) => (float[N, T, 3] y) { h = MatMul(x, w)  y = Add(h, b) }"
    notes = rewrite(parse(graph, w=noise(4, 3), b=noise(3)), LinearLayers(), x=noise(2, 5, 4))
    assert "this has 3" in notes[0].message


@pytest.mark.parametrize("shape", [(1,), (2, 1), (2, 3)])
def test_what_is_no_bias_stays(shape: tuple[int, ...]) -> None:
    graph = "g (float[2, 4] x) => (float[2, 3] y) { h = MatMul(x, w)  y = Add(h, b) }"
    assert rewrite(parse(graph, w=noise(4, 3), b=noise(*shape)), LinearLayers(), x=noise(2, 4)) == []


@pytest.mark.parametrize(("weight", "data"), [((1, 4, 3), (2, 5, 4)), ((1, 1, 4, 3), (2, 6, 5, 4))])
def test_a_stack_of_one_matrix_becomes_a_matrix(weight: tuple[int, ...], data: tuple[int, ...]) -> None:
    free = ",".join("NTUV"[: len(data) - 1])
    graph = f"g (float[{free},4] x) => (float[{free},3] y) {{ h = MatMul(x, w)  y = MatMul(h, v) }}"
    model = parse(graph, w=noise(*weight), v=noise(1, 3, 3))
    notes = rewrite(model, LinearLayers(), x=noise(*data))
    assert operators(model) == ["MatMul", "MatMul"]
    assert [layer.shape for layer in find_layers(model)] == [(4, 3), (3, 3)]
    assert [note.subject for note in notes] == ["h", "y"]


def test_an_input_of_fewer_axes_than_the_stack_gets_them() -> None:
    model = parse("g (float[N,4] x) => (float[1,1,N,3] y) { y = MatMul(x, w) }", w=noise(1, 1, 4, 3))
    rewrite(model, LinearLayers(), x=noise(5, 4))
    assert operators(model) == ["Unsqueeze", "MatMul"]
    assert len(find_layers(model)) == 1


def test_products_share_the_matrix_of_a_stack_that_they_share() -> None:
    graph = "g (float[N,T,4] x) => (float[N,T,4] y) { h = MatMul(x, w)  y = MatMul(h, w) }"
    model = parse(graph, w=noise(1, 4, 4))
    rewrite(model, LinearLayers(), x=noise(2, 5, 4))
    assert len({layer.weight for layer in find_layers(model)}) == len(model.graph.initializers) == 1


@pytest.mark.parametrize(("weight", "data"), [((2, 4, 3), (2, 5, 4)), ((1, 2, 4, 3), (6, 2, 5, 4)), ((1, 4, 3), (4,))])
def test_stacks_of_several_matrices_and_vectors_stay(weight: tuple[int, ...], data: tuple[int, ...]) -> None:
    value, wanted = (",".join(map(str, shape)) for shape in (data, (noise(*data) @ noise(*weight)).shape))
    model = parse(f"g (float[{value}] x) => (float[{wanted}] y) {{ y = MatMul(x, w) }}", w=noise(*weight))
    assert rewrite(model, LinearLayers(), x=noise(*data)) == []
