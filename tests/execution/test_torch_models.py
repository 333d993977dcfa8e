"""Whole models in normal form, in torch and in ONNX Runtime."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse

from ptqc.execution.onnxruntime import Feeds, run
from ptqc.passes.canonicalize.rewrites import default_rewrites
from ptqc.passes.runner import run_rewrites

torch = pytest.importorskip("torch", reason="torch is not installed")

from ptqc.execution.torch.graph import TorchGraph, unsupported  # noqa: E402

MODELS = Path(__file__).resolve().parents[2] / "models"
TOLERANCE = 1e-5  # of a value's largest magnitude
GLOBAL_NORM = """g (float[N, 3, 4, 5] x) => (float[N, 3, 1, 1] y, float[N, 3, 1, 1] z) {
    y = GlobalLpPool <p = 3> (x)
    z = GlobalLpPool (x)
}"""


def random_feeds(model: ir.Model) -> Feeds:
    """Two samples for each input, in the sizes that the model states."""
    shapes = {str(value.name): value.shape for value in model.graph.inputs}
    return {
        name: noise(*(size if isinstance(size, int) else 2 for size in shape or ()), seed=7)
        for name, shape in shapes.items()
    }


def compare(model: ir.Model, feeds: Feeds) -> None:
    """Every float value of the graph."""
    taps = [str(v.name) for node in model.graph for v in node.outputs if v.dtype == ir.DataType.FLOAT]
    expected = run(model, feeds, taps)
    result = TorchGraph(model).run({name: torch.from_numpy(array) for name, array in feeds.items()}, taps)
    for name in taps:
        limit = TOLERANCE * np.abs(expected[name]).max()
        np.testing.assert_allclose(result[name].numpy(), expected[name], rtol=0, atol=limit, err_msg=name)


@pytest.mark.parametrize("name", ["digits_resnet_dw", "tiny_detector_silu", "tiny_mlp"])
def test_values_are_those_of_onnxruntime(name: str) -> None:
    model = ir.load(MODELS / f"{name}.onnx")
    feeds = random_feeds(model)
    run_rewrites(model, default_rewrites(), [feeds])
    assert unsupported(model) == []
    compare(model, feeds)


def test_recurrent_layers_are_left_to_onnxruntime() -> None:
    model = ir.load(MODELS / "tiny_gru_tagger.onnx")
    assert [node.op_type for node in unsupported(model)] == ["GRU"]


def test_an_operator_that_onnx_has_no_case_for() -> None:
    compare(parse(GLOBAL_NORM), {"x": noise(2, 3, 4, 5)})
