from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse
from rewriting import operators

from ptqc.errors import ModelError, PassError
from ptqc.execution.onnxruntime import run
from ptqc.ir.nodes import constant, replace_constant
from ptqc.notes import Note
from ptqc.passes.base import Effect, Probed, Result
from ptqc.passes.canonicalize.rewrites import default_rewrites
from ptqc.passes.dump import Dump
from ptqc.passes.runner import run_rewrites

LINEAR = "g (float[N, 4] x) => (float[N, 3] y) { h = MatMul(x, w)  y = Relu(h) }"


@dataclass(frozen=True)
class Saboteur:
    """A pass that breaks its promise in one of several ways."""

    way: str
    name: ClassVar[str] = "saboteur"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, value: Probed) -> Result[Probed]:
        model = value.model
        node = model.graph[0]
        weight = constant(node.inputs[1])
        assert weight is not None
        if self.way == "scale":
            replace_constant(model, node, 1, (weight * 1.001).astype(np.float32), "w")
        elif self.way == "nan":
            replace_constant(model, node, 1, weight * np.float32(np.nan), "w")
        elif self.way == "rename":
            model.graph.outputs[0].name = "z"
        elif self.way == "retype":
            model.graph.inputs[0].shape = ir.Shape([1, 4])
        elif self.way == "operator":
            model.graph[1].op_type = "Nonsense"
        return Result(value, self.way != "nothing", (Note(self.name, "", self.way),))


@pytest.mark.parametrize("way", ["scale", "nan", "rename", "retype", "operator"])
def test_a_pass_that_breaks_its_promise_is_named(way: str) -> None:
    model = parse(LINEAR, w=noise(4, 3))
    with pytest.raises(PassError, match="saboteur"):
        run_rewrites(model, (Saboteur(way),), [{"x": noise(5, 4)}])


def test_the_fault_names_output_and_difference() -> None:
    model = parse(LINEAR, w=noise(4, 3))
    with pytest.raises(PassError, match=r"output 'y' on probe sample 0: differs by .* allowed"):
        run_rewrites(model, (Saboteur("scale"),), [{"x": noise(5, 4)}])


def test_idle_passes_are_not_checked_and_notes_are_kept() -> None:
    notes = run_rewrites(parse(LINEAR, w=noise(4, 3)), (Saboteur("nothing"),), [{"x": noise(5, 4)}])
    assert [note.message for note in notes] == ["nothing"]


def test_a_probe_that_does_not_fit_is_a_model_error() -> None:
    with pytest.raises(ModelError, match="probe"):
        run_rewrites(parse(LINEAR, w=noise(4, 3)), (), [{"x": noise(5, 7)}])


def test_progress_and_dump(tmp_path: Path) -> None:
    heard: list[str] = []
    run_rewrites(parse(LINEAR, w=noise(4, 3)), default_rewrites()[:2], [], heard.append, Dump(tmp_path / "dump"))
    assert heard == ["inline-functions", "convert-opset"]
    assert sorted(path.name for path in (tmp_path / "dump").iterdir()) == [
        "001_inline-functions.txt",
        "002_convert-opset.txt",
    ]
    assert "MatMul" in (tmp_path / "dump" / "002_convert-opset.txt").read_text(encoding="utf-8")


def test_a_small_network_ends_in_its_normal_form() -> None:
    graph = """g (float[N, 3, 9, 9] x) => (float[N, 5] y) {
        p = Pad(x, pads)
        c = Conv(p, w)
        n = BatchNormalization(c, scale, shift, mean, variance)
        r = Relu(n)
        one = Identity(r)
        m = ReduceMean <axes = [2, 3], keepdims = 1> (one)
        s = Shape(m)
        zero = Constant <value = int64 {0}> ()
        b = Gather(s, zero)
        axis = Constant <value = int64[1] {0}> ()
        u = Unsqueeze(b, axis)
        rest = Constant <value = int64[1] {-1}> ()
        t = Concat <axis = 0> (u, rest)
        f = Reshape(m, t)
        h = MatMul(f, v)
        y = Add(h, bias)
    }"""
    model = parse(
        graph,
        13,
        pads=np.array([0, 0, 1, 0, 0, 0, 2, 1]),
        w=noise(4, 3, 3, 3),
        scale=noise(4),
        shift=noise(4, seed=1),
        mean=noise(4, seed=2),
        variance=np.abs(noise(4, seed=3)) + 0.5,
        v=noise(4, 5),
        bias=noise(5),
    )
    run_rewrites(model, default_rewrites(), [{"x": noise(batch, 3, 9, 9)} for batch in (1, 3)])
    assert operators(model) == ["Conv", "Relu", "GlobalAveragePool", "Flatten", "Gemm"]
    assert [str(value.shape) for value in (*model.graph.inputs, *model.graph.outputs)] == ["[N,3,9,9]", "[N,5]"]
    assert model.graph[0].attributes["pads"].as_ints() == (1, 0, 2, 1)


@pytest.mark.shared_data
def test_real_models_keep_their_function(shared_data: Path) -> None:
    from ptqc.frontend import read_model

    model = read_model(shared_data / "models" / "mlperftiny_kws_dscnn.onnx").model
    run_rewrites(model, default_rewrites(), [{"input": noise(2, 1, 49, 10)}])
    assert set(operators(model)) == {"Conv", "Relu", "GlobalAveragePool", "Flatten", "Gemm"}


@pytest.mark.parametrize(("opset", "advice"), [(18, "fix the model or the samples"), (23, "opset 22 or lower")])
def test_a_model_that_does_not_run_is_told_with_what_helps(opset: int, advice: str) -> None:
    model = parse(LINEAR, w=noise(4, 3))
    model.graph.opset_imports[""] = opset
    with pytest.raises(ModelError, match=advice) as caught:
        run_rewrites(model, (), [{"x": noise(5, 7)}])
    assert "onnxruntime_src" not in str(caught.value)


def test_mixed_precision_written_as_casts_computes_in_float32() -> None:
    """As autocast is exported: weights in float32 that are cast where they are used, inputs and outputs in float32."""
    graph = """g (float[N, 4] x) => (float[N, 3] y) {
        xh = Cast <to = 10> (x)
        wh = Cast <to = 10> (w)
        h = MatMul(xh, wh)
        r = Relu(h)
        y = Cast <to = 1> (r)
    }"""
    model = parse(graph, w=noise(4, 3))
    for node in model.graph:  # files do not state these
        node.outputs[0].type = node.outputs[0].type if node.outputs[0].is_graph_output() else None
    x = noise(5, 4, seed=1)
    run_rewrites(model, default_rewrites(), [{"x": x}])
    assert {value.dtype for value in model.graph.initializers.values()} == {ir.DataType.FLOAT}
    np.testing.assert_allclose(run(model, {"x": x}, ["y"])["y"], np.maximum(x @ noise(4, 3), 0), rtol=1e-3, atol=1e-3)
