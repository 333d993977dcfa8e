import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse

from ptqc.execute.onnxruntime import Feeds, run
from ptqc.execute.walk import Slicer, Walk

RESIDUAL = """g (float[N, 4, 6, 6] x, float[N, 4] bias) => (float[N, 3] y, float[N, 4, 6, 6] s, float[N, 4, A] t) {
    c = Conv <pads = [1, 1, 1, 1]> (x, w)
    r = Relu(c)
    s = Add(r, x)
    unused = Tanh(s)
    g = GlobalAveragePool(s)
    f = Flatten(g)
    h = Add(f, bias)
    y = MatMul(h, v)
    t = Reshape(r, shape)
}"""
CHOICE = """g (float[N, 4] x, bool c) => (float[N, 4] y) {
    a = Mul(x, k)
    b = Neg(x)
    inner = Relu(b)
    z = If (c) <
        then_branch = then () => (float[N, 4] p) { q = Add(a, k) p = Mul(q, inner) },
        else_branch = other () => (float[N, 4] p) {
            p = If (c) <
                then_branch = deep () => (float[N, 4] d) { d = Identity(a) },
                else_branch = deeper () => (float[N, 4] e) { e = Sub(b, k) }
            >
        }
    >
    y = Abs(z)
}"""
TWO_OUTPUTS = """g (float[N, 4] x) => (float[N, 2] y, float[N, 2] first) {
    first, second = Split <axis = 1, num_outputs = 2> (x)
    n = Neg(second)
    y = Add(first, n)
}"""


def model_of(name: str) -> ir.Model:
    match name:
        case "residual":
            constants = {"w": noise(4, 4, 3, 3), "v": noise(4, 3), "shape": np.array([0, 4, -1])}
            return parse(RESIDUAL, **constants)
        case "choice":
            return parse(CHOICE, k=noise(1, 4, seed=3))
        case _:
            return parse(TWO_OUTPUTS)


def batches_of(name: str) -> list[Feeds]:
    rows = (2, 1, 3)
    match name:
        case "residual":
            return [{"x": noise(n, 4, 6, 6, seed=n), "bias": noise(n, 4, seed=n + 9)} for n in rows]
        case "choice":
            return [{"x": noise(n, 4, seed=n), "c": np.array(n > 1)} for n in rows]
        case _:
            return [{"x": noise(n, 4, seed=n)} for n in rows]


NAMES = ["residual", "choice", "two outputs"]


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def whole(name: str) -> list[dict[str, np.ndarray]]:
    """Every float value of the main graph, from runs of the whole model."""
    model = model_of(name)
    inner = [str(value.name) for node in model.graph for value in node.outputs]
    return [{**feeds, **run(model, feeds, inner)} for feeds in batches_of(name)]


def close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_node_by_node_equals_the_whole_run(name: str, whole: list[dict[str, np.ndarray]]) -> None:
    walk = Walk(Slicer(model_of(name)), batches_of(name))
    while walk.position < len(walk):
        results = walk.compute()
        assert list(results) == [output for output in walk.node.output if output]
        for output, arrays in results.items():
            for found, expected in zip(arrays, whole, strict=True):
                close(found, expected[output])
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
            for found, expected in zip(fast.values[value], arrays, strict=True):
                np.testing.assert_array_equal(found, expected)


def test_only_what_is_still_needed_is_held(name: str) -> None:
    slicer = Slicer(model_of(name))
    walk = Walk(slicer, batches_of(name))
    while walk.position < len(walk):
        walk.advance(walk.compute())
        later = set(slicer.outputs).union(*slicer.reads[walk.position :])
        made = {name for node in slicer.nodes[: walk.position] for name in node.output} | set(batches_of(name)[0])
        assert set(walk.values) == later & made
        assert walk.held_bytes == sum(a.nbytes for arrays in walk.values.values() for a in arrays)


def with_injected(model: ir.Model, value: str, feeds: Feeds, replaced: np.ndarray) -> dict[str, np.ndarray]:
    """Outputs of a copy of the model in which readers of a value read an extra input instead."""
    copy = model.clone()
    found = next(v for node in copy.graph for v in node.outputs if v.name == value)
    extra = ir.Value(name="injected", type=found.type)
    copy.graph.inputs.append(extra)
    for use in tuple(found.uses()):
        use.node.replace_input_with(use.idx, extra)
    outputs = run(copy, {**feeds, "injected": replaced})
    if value in outputs:
        outputs[value] = replaced
    return outputs


def test_the_rest_with_a_value_replaced_equals_a_run_with_it_injected(name: str) -> None:
    model = model_of(name)
    batches = batches_of(name)
    slicer = Slicer(model)
    walk = Walk(slicer, batches)
    compared = 0
    while walk.position < len(walk):
        results = walk.compute()
        suffix = walk.suffix(walk.position)
        for output, arrays in results.items():
            changed = [a + np.float32(0.5) for a in arrays]
            # What the suffix reads besides is at hand, but for the other outputs of this node.
            found = suffix.run({**results, output: changed})
            for i, feeds in enumerate(batches):
                expected = with_injected(model, output, feeds, changed[i])
                assert set(found[i]) == set(expected)
                for key, value in expected.items():
                    close(found[i][key], value)
                    compared += 1
        walk.advance(results)
    assert compared >= 3 * len(slicer.nodes)


def test_the_whole_graph_is_the_suffix_of_the_start(name: str, whole: list[dict[str, np.ndarray]]) -> None:
    walk = Walk(Slicer(model_of(name)), batches_of(name))
    for found, expected in zip(walk.suffix().run({}), whole, strict=True):
        assert list(found) == walk.slicer.outputs
        for key, value in found.items():
            close(value, expected[key])


def test_a_suffix_runs_again_with_other_values() -> None:
    walk = Walk(Slicer(model_of("two outputs")), batches_of("two outputs"))
    suffix = walk.suffix()
    x = walk.values["x"]
    for factor in (1, 2):
        outputs = suffix.run({"x": [a * np.float32(factor) for a in x]})
        close(outputs[0]["y"], factor * (x[0][:, :2] - x[0][:, 2:]))


def test_graph_inputs_can_be_replaced() -> None:
    model = model_of("residual")
    batches = batches_of("residual")
    walk = Walk(Slicer(model), batches)
    changed = [b["x"] * 2 for b in batches]
    for found, feeds, x in zip(walk.suffix().run({"x": changed}), batches, changed, strict=True):
        close(found["y"], run(model, {**feeds, "x": x})["y"])


def test_constants_can_be_replaced() -> None:
    model = model_of("residual")
    batches = batches_of("residual")
    other = {"w": noise(4, 4, 3, 3, seed=7)}
    changed = parse(RESIDUAL, v=noise(4, 3), shape=np.array([0, 4, -1]), **other)
    expected = [run(changed, feeds, ["c"]) for feeds in batches]
    walk = Walk(Slicer(model), batches)
    close(walk.compute(other)["c"][1], expected[1]["c"])
    close(walk.compute()["c"][1], run(model, batches[1], ["c"])["c"])
    close(walk.suffix(constants=other).run({})[1]["y"], expected[1]["y"])
    close(Walk(Slicer(model), batches, other).suffix().run({})[2]["y"], expected[2]["y"])


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
    close(walk.values["y"][0], np.minimum(noise(2, 4) * 10, 6))
    assert set(walk.values) == {"y"}


def test_a_vector_of_sizes_keeps_its_length() -> None:
    graph = "g (float[1,1,2,2] x, int64[4] sizes) => (float[1,1,H,W] y) { y = Resize(x, , , sizes) }"
    feeds = {"x": noise(1, 1, 2, 2), "sizes": np.array([1, 1, 4, 4])}
    walk = Walk(Slicer(parse(graph)), [feeds])
    assert walk.compute()["y"][0].shape == (1, 1, 4, 4)
