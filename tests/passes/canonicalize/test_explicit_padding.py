import pytest
from graphs import noise, parse
from rewriting import rewrite

from ptqc.passes.canonicalize.explicit_padding import ExplicitPadding


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("operator", ["Conv", "MaxPool", "AveragePool"])
def test_pads_are_written_out(operator: str, stride: int, mode: str) -> None:
    attributes = f'kernel_shape = [3, 4], strides = [{stride}, {stride}], auto_pad = "{mode}"'
    inputs = "x, w" if operator == "Conv" else "x"
    model = parse(
        f"g (float[N, 2, 9, 10] x) => (float[N, C, H, W] y) {{ y = {operator} <{attributes}> ({inputs}) }}",
        **({"w": noise(3, 2, 3, 4)} if operator == "Conv" else {}),
    )
    rewrite(model, ExplicitPadding(), x=noise(2, 2, 9, 10))
    assert "auto_pad" not in model.graph[0].attributes


def test_symbolic_sizes_work_at_stride_one_only() -> None:
    graph = """g (float[N, 2, W] x) => (float[N, C, V] y) {
        h = Conv <auto_pad = "SAME_UPPER"> (x, w)
        y = Conv <auto_pad = "SAME_UPPER", strides = [2]> (h, w)
    }"""
    model = parse(graph, w=noise(2, 2, 3))
    notes = rewrite(model, ExplicitPadding(), x=noise(2, 2, 9))
    assert [note.level for note in notes] == ["info", "skipped"]


@pytest.mark.parametrize(("kernel", "level"), [(4, "info"), (3, "skipped")])
def test_transposed_convolution(kernel: int, level: str) -> None:
    graph = """g (float[N, 2, 5] x) => (float[N, C, W] y) {
        y = ConvTranspose <auto_pad = "SAME_UPPER", strides = [2]> (x, w)
    }"""
    notes = rewrite(parse(graph, w=noise(2, 3, kernel)), ExplicitPadding(), x=noise(2, 2, 5))
    assert [note.level for note in notes] == [level]
