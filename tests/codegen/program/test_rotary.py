import numpy as np
import pytest
from graphs import noise, parse

from ptqc.codegen.program.expansion import expanded
from ptqc.execution.onnxruntime import Feeds, run

OPSET = 23
SHAPES = {"heads apart": ("float[N, 4, 5, 8] x", "", noise(2, 4, 5, 8)), "words": (
    "float[N, 5, 32] x", "num_heads = 4, ", noise(2, 5, 32)
)}  # fmt: skip
PLACES = np.array([[0, 1, 2, 3, 4], [6, 0, 1, 2, 3]])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("has_places", [False, True])
def test_gives_what_onnxruntime_gives(shape: str, interleaved: int, has_places: bool) -> None:
    declared, heads, x = SHAPES[shape]
    table = "float[7, 4]" if has_places else "float[N, 5, 4]"
    places, values = (", int64[N, 5] p", ", p") if has_places else ("", "")
    graph = f"""g ({declared}, {table} c, {table} s{places}) => (float[N, M, K] y) {{
        t = RotaryEmbedding <{heads}interleaved = {interleaved}> (x, c, s{values}) y = Neg(t) }}"""
    model = parse(graph.replace("N, M, K", ", ".join(["N", *map(str, x.shape[1:])])), OPSET)
    angles = noise(*((7, 4) if has_places else (2, 5, 4)))
    feeds: Feeds = {"x": x, "c": np.cos(angles), "s": np.sin(angles)} | ({"p": PLACES} if has_places else {})
    written = expanded(model)
    kinds = {node.op_type for node in written.graph}
    assert "RotaryEmbedding" not in kinds
    assert "Split" in kinds
    np.testing.assert_allclose(run(written, feeds)["y"], run(model, feeds)["y"], atol=1e-6)
    assert all(0 not in (value.shape or ()) for node in written.graph for value in node.outputs)


def test_a_part_that_is_not_turned_stays_as_it_is() -> None:
    graph = """g (float[2, 4, 5, 8] x, float[2, 5, 2] c, float[2, 5, 2] s) => (float[2, 4, 5, 8] y) {
        y = RotaryEmbedding <rotary_embedding_dim = 4> (x, c, s) }"""
    angles, model = noise(2, 5, 2), parse(graph, OPSET)
    feeds: Feeds = {"x": noise(2, 4, 5, 8), "c": np.cos(angles), "s": np.sin(angles)}
    np.testing.assert_allclose(run(expanded(model), feeds)["y"], run(model, feeds)["y"], atol=1e-6)
