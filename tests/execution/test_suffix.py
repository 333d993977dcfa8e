from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse
from walks import NAMES, RESIDUAL, batches_of, close, model_of

from ptqc.execution.onnxruntime import Feeds, run
from ptqc.execution.walk import Slicer, Suffixes, Walk
from ptqc.utils.lazy import Lazy


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def with_injected(model: ir.Model, value: str, feeds: Feeds, replaced: np.ndarray) -> dict[str, np.ndarray]:
    """Outputs of a copy of the model in which readers of a value read an extra input instead."""
    copy = model.clone()
    result = next(v for node in copy.graph for v in node.outputs if v.name == value)
    extra = ir.Value(name="injected", type=result.type)
    copy.graph.inputs.append(extra)
    for use in tuple(result.uses()):
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
    suffixes = Suffixes(walk)
    compared = 0
    while walk.position < len(walk):
        results = walk.compute()
        suffix = suffixes.behind(walk.position)
        for output, arrays in results.items():
            changed = [np.asarray(a) + np.float32(0.5) for a in arrays]
            # What the suffix reads besides is at hand, but for the other outputs of this node.
            result = list(suffix.run({**results, output: changed}))
            for i, feeds in enumerate(batches):
                expected = with_injected(model, output, feeds, changed[i])
                assert set(result[i]) == set(expected)
                for key, value in expected.items():
                    close(result[i][key], value)
                    compared += 1
        walk.advance(results)
    assert compared >= 3 * len(slicer.nodes)


@pytest.mark.parametrize("batches", [None, 1])
def test_the_whole_graph_is_behind_its_start(name: str, batches: int | None) -> None:
    model, feeds = model_of(name), batches_of(name)
    walk = Walk(Slicer(model), feeds)
    for result, values in zip(Suffixes(walk).behind(-1).run({}, batches), feeds[:batches], strict=True):
        expected = run(model, values)
        assert list(result) == walk.slicer.outputs
        for key, value in result.items():
            close(value, expected[key])


def test_a_suffix_runs_again_with_other_values() -> None:
    walk = Walk(Slicer(model_of("two outputs")), batches_of("two outputs"))
    suffix = Suffixes(walk).behind(-1)
    x = [np.asarray(a) for a in walk.values["x"]]
    for factor in (1, 2):
        outputs = list(suffix.run({"x": [a * np.float32(factor) for a in x]}))
        close(outputs[0]["y"], factor * (x[0][:, :2] - x[0][:, 2:]))


def test_graph_inputs_can_be_replaced() -> None:
    model = model_of("residual")
    batches = batches_of("residual")
    walk = Walk(Slicer(model), batches)
    changed = [b["x"] * 2 for b in batches]
    for result, feeds, x in zip(Suffixes(walk).behind(-1).run({"x": changed}), batches, changed, strict=True):
        close(result["y"], run(model, {**feeds, "x": x})["y"])


def test_constants_can_be_replaced() -> None:
    model = model_of("residual")
    batches = batches_of("residual")
    other = {"w": noise(4, 4, 3, 3, seed=7)}
    changed = parse(RESIDUAL, v=noise(4, 3), shape=np.array([0, 4, -1]), **other)
    expected = [run(changed, feeds) for feeds in batches]
    walk = Walk(Slicer(model), batches)
    close(list(Suffixes(walk).whole(other).run({}))[1]["y"], expected[1]["y"])
    replaced = Walk(Slicer(model), batches, other)
    close(list(Suffixes(replaced).behind(-1).run({}))[2]["y"], expected[2]["y"])


def test_each_node_is_in_few_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session for all that follows each node would hold the last of n nodes n times."""
    nodes, counts = 100, Counter[str]()
    chain = "\n".join(f"v{i + 1} = Add(v{i}, v{i})" for i in range(nodes))
    model = parse(f"g (float[N, 2] v0) => (float[N, 2] v{nodes}) {{ {chain} }}")
    right = Slicer.session

    def counted(slicer: Slicer, indices: list[int], *others: object) -> object:
        counts.update(slicer.nodes[i].output[0] for i in indices)
        return right(slicer, indices, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(Slicer, "session", counted)
    walk = Walk(Slicer(model), [{"v0": np.ones((1, 2), np.float32) * 2.0**-90}])
    suffixes = Suffixes(walk)
    while walk.position < len(walk):
        results = walk.compute()
        result = list(suffixes.behind(walk.position).run(results))
        close(result[0][f"v{nodes}"], np.full((1, 2), 2.0**10, np.float32))
        walk.advance(results)
    stretches = stretch = 10
    assert max(counts.values()) <= stretches + stretch + 1


def test_values_and_outputs_are_made_when_they_are_read() -> None:
    model, feeds = model_of("residual"), batches_of("residual")
    many = [feeds[i % len(feeds)] for i in range(40)]
    walk, made = Walk(Slicer(model), many), list[int]()

    def changed(batch: int) -> np.ndarray:
        made.append(batch)
        return many[batch]["x"] * np.float32(2)

    outputs = Suffixes(walk).behind(-1).run({"x": Lazy(changed, len(many))})
    assert made == []
    for batch, result in zip(range(3), outputs, strict=False):
        close(result["y"], run(model, {**many[batch], "x": changed(batch)})["y"])
    assert len(set(made)) <= 3 + 2 * walk.workers + 1
