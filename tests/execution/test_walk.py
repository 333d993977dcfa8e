import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse
from walks import NAMES, RESIDUAL, batches_of, close, model_of

from ptqc.execution.onnxruntime import run
from ptqc.execution.walk import Slicer, Walk


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def whole(name: str) -> list[dict[str, np.ndarray]]:
    """Every float value of the main graph, from runs of the whole model."""
    model = model_of(name)
    inner = [str(value.name) for node in model.graph for value in node.outputs]
    return [{**feeds, **run(model, feeds, inner)} for feeds in batches_of(name)]


def test_node_by_node_equals_the_whole_run(name: str, whole: list[dict[str, np.ndarray]]) -> None:
    walk = Walk(Slicer(model_of(name)), batches_of(name))
    while walk.position < len(walk):
        results = walk.compute()
        assert list(results) == [output for output in walk.node.output if output]
        for output, arrays in results.items():
            for result, expected in zip(arrays, whole, strict=True):
                close(np.asarray(result), expected[output])
        walk.advance(results)
    outputs = set(walk.slicer.outputs)
    assert set(walk.values) == outputs


def test_a_step_gives_what_compute_and_advance_give(name: str) -> None:
    slicer, batches = Slicer(model_of(name)), batches_of(name)
    slow, fast = Walk(slicer, batches), Walk(slicer, batches)
    while slow.position < len(slow):
        slow.advance(slow.compute())
        fast.step()
        assert fast.values.keys() == slow.values.keys()
        for value, arrays in slow.values.items():
            for result, expected in zip(fast.values[value], arrays, strict=True):
                np.testing.assert_array_equal(result, expected)


def test_no_bit_depends_on_the_number_of_processors() -> None:
    model = parse(
        "g (float[N,301,9,9] x) => (float[N,30,9,9] y) { y = Conv <pads = [1,1,1,1]> (x, w) }", w=noise(30, 301, 3, 3)
    )
    batches = [{"x": noise(1, 301, 9, 9, seed=seed)} for seed in range(2)]
    few, many = (Walk(Slicer(model), batches, workers=count).compute()["y"] for count in (1, 16))
    for a, b in zip(few, many, strict=True):
        np.testing.assert_array_equal(a, b)


def test_only_what_is_still_needed_is_held(name: str) -> None:
    slicer = Slicer(model_of(name))
    walk = Walk(slicer, batches_of(name))
    while walk.position < len(walk):
        walk.advance(walk.compute())
        later = set(slicer.outputs).union(*slicer.reads[walk.position :])
        made = {name for node in slicer.nodes[: walk.position] for name in node.output} | set(batches_of(name)[0])
        assert set(walk.values) == later & made
        assert walk.held_bytes == sum(a.nbytes for arrays in walk.values.values() for a in arrays)


def test_constants_can_be_replaced() -> None:
    model = model_of("residual")
    batches = batches_of("residual")
    other = {"w": noise(4, 4, 3, 3, seed=7)}
    changed = parse(RESIDUAL, v=noise(4, 3), shape=np.array([0, 4, -1]), **other)
    walk = Walk(Slicer(model), batches)
    close(np.asarray(walk.compute(other)["c"][1]), run(changed, batches[1], ["c"])["c"])
    close(np.asarray(walk.compute()["c"][1]), run(model, batches[1], ["c"])["c"])


def test_a_walk_can_go_on_with_other_values() -> None:
    """What `advance` is given is what later nodes see."""
    batches = batches_of("two outputs")
    walk = Walk(Slicer(model_of("two outputs")), batches)
    results = walk.compute()
    walk.advance({name: [np.zeros_like(a) for a in arrays] for name, arrays in results.items()})
    while walk.position < len(walk):
        walk.advance(walk.compute())
    assert not np.any(walk.values["y"][0])
    assert not np.any(walk.values["first"][0])


def test_what_nodes_read() -> None:
    slicer = Slicer(model_of("choice"))
    assert slicer.reads[3] == {"c", "a", "b", "k", "inner"}
    assert slicer.is_constant("k")
    assert not slicer.is_constant("a")
    residual = Slicer(model_of("residual"))
    names = [residual.nodes[i].output[0] for i in residual.needed(2, ["y"])]
    assert names == ["s", "g", "f", "h", "y"]
    assert residual.needed(5, ["t"]) == [8]


def test_optional_inputs_and_outputs_that_are_absent() -> None:
    model = parse(
        "g (float[N, 4] x) => (float[N, 4] y) { c = Clip(x, , six) y, m = Dropout(c) }",
        six=np.float32(6) * np.ones(()).astype(np.float32),
    )
    walk = Walk(Slicer(model), [{"x": noise(2, 4) * 10}])
    while walk.position < len(walk):
        walk.advance(walk.compute())
    close(np.asarray(walk.values["y"][0]), np.minimum(noise(2, 4) * 10, 6))
    assert set(walk.values) == {"y"}


def test_a_vector_of_sizes_keeps_its_length() -> None:
    graph = "g (float[1,1,2,2] x, int64[4] sizes) => (float[1,1,H,W] y) { y = Resize(x, , , sizes) }"
    feeds = {"x": noise(1, 1, 2, 2), "sizes": np.array([1, 1, 4, 4])}
    walk = Walk(Slicer(parse(graph)), [feeds])
    assert walk.compute()["y"][0].shape == (1, 1, 4, 4)


def test_attention_keeps_the_width_of_its_queries() -> None:
    """ONNX Runtime's shape inference takes an unknown one for 0, which no product behind it fits."""
    graph = """g (float[N,T,8] x) => (float[N,T,5] y) {
        q = Relu(x) a = Attention<q_num_heads=2,kv_num_heads=2>(q, x, x) y = MatMul(a, w)
    }"""
    feeds, weight = {"x": noise(2, 3, 8)}, noise(8, 5, seed=1)
    slicer = Slicer(parse(graph, 23, w=weight))
    queries = np.maximum(feeds["x"], 0)
    result = slicer.session([1, 2], {"q": queries, "x": feeds["x"]}, ["y"]).run(None, {**feeds, "q": queries})[0]
    heads = [array.reshape(2, 3, 2, 4).transpose(0, 2, 1, 3) for array in (queries, feeds["x"])]
    scores = np.exp(heads[0] @ heads[1].transpose(0, 1, 3, 2) / 2)
    attended = (scores / scores.sum(-1, keepdims=True)) @ heads[1]
    close(np.asarray(result), attended.transpose(0, 2, 1, 3).reshape(2, 3, 8) @ weight)


def test_sizes_that_the_model_states_wrongly_are_not_stated() -> None:
    model = parse("g (float[N,4] x) => (float[N,4] y) { a = Relu(x) y = Neg(a) }")
    model.graph.node(0).outputs[0].shape = ir.Shape(["N", 7])
    values = Slicer(model).session([1], {"a": noise(2, 4)}, ["y"]).run(None, {"a": noise(2, 4)})[0]
    close(np.asarray(values), -noise(2, 4))


@pytest.mark.parametrize("start", ["s = SequenceEmpty()", "e = SplitToSequence(x) s = SequenceErase(e)"])
def test_a_sequence_may_be_empty(start: str) -> None:
    graph = (
        f"g (float[1,4] x) => (float[M,4] y) {{ {start} t = SequenceInsert(s, x) y = ConcatFromSequence<axis=0>(t) }}"
    )
    walk = Walk(Slicer(parse(graph)), [{"x": noise(1, 4)}])
    while walk.position < len(walk):
        walk.advance(walk.compute())
    close(np.asarray(walk.values["y"][0]), noise(1, 4))
