import numpy as np
import pytest
from graphs import noise, parse
from rewriting import rewrite

from ptqc.passes.canonicalize.convert_opset import REDUCTIONS, ConvertOpset


@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize("opset", [13, 17])
def test_reductions_take_their_axes_as_input(kind: str, opset: int) -> None:
    model = parse(f"g (float[N, 3] x) => (float[N] y) {{ y = Reduce{kind} <axes = [1], keepdims = 0> (x) }}", opset)
    rewrite(model, ConvertOpset(), x=np.abs(noise(4, 3)) + 0.1)
    assert model.graph.opset_imports[""] == 18
    assert len(model.graph[0].inputs) == 2


def test_split_into_equal_parts_says_how_many() -> None:
    model = parse("g (float[N, 6] x) => (float[N, 3] a, float[N, 3] b) { a, b = Split <axis = 1> (x) }", 13)
    rewrite(model, ConvertOpset(), x=noise(2, 6))
    assert model.graph[0].attributes["num_outputs"].as_int() == 2


def test_roi_align_keeps_its_old_default() -> None:
    body = "y = RoiAlign <output_height = 2, output_width = 2> (x, r, b)"
    graph = f"g (float[1, 1, 6, 6] x) => (float[1, 1, 2, 2] y) {{ {body} }}"
    model = parse(graph, 13, r=np.array([[0.5, 0.5, 4, 5]], np.float32), b=np.array([0]))
    rewrite(model, ConvertOpset(), x=noise(1, 1, 6, 6))


def test_subgraphs_are_converted() -> None:
    graph = """g (float[N, 3] x, bool c) => (float[N, M] y) {
        y = If(c) <then_branch = t () => (float[N, 1] a) { a = ReduceMax <axes = [1]> (x) },
                   else_branch = e () => (float[N, 1] b) { b = ReduceMin <axes = [1]> (x) }>
    }"""
    rewrite(parse(graph, 14), ConvertOpset(), x=noise(2, 3), c=np.array(True))


@pytest.mark.parametrize(
    "body",
    [
        'y = Resize <mode = "linear"> (x, , scales)',
        "y = Pad(x, pads)",
        "y = BatchNormalization(x, two, two, two, two)",
        "y = LeakyRelu(x)",
        "s = Shape(x)  y = Reshape(x, s)",
        "y = Clip(x, , one)",
    ],
)
def test_operators_without_an_adapter_mean_the_same(body: str) -> None:
    model = parse(
        f"g (float[N, 2, 4, 4] x) => (float[A, B, C, D] y) {{ {body} }}",
        13,
        scales=np.array([1, 1, 2, 2], np.float32),
        pads=np.array([0, 0, 1, 0, 0, 0, 0, 2]),
        two=np.array([1, 2], np.float32),
        one=np.array(1, np.float32),
    )
    rewrite(model, ConvertOpset(), x=noise(2, 2, 4, 4))


def test_higher_opsets_stay() -> None:
    model = parse("g (float[N] x) => (float[N] y) { y = Relu(x) }", 21)
    assert rewrite(model, ConvertOpset(), x=noise(2)) == []
    assert model.graph.opset_imports[""] == 21
