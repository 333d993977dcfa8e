import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse

from ptqc.errors import PassError
from ptqc.execution.onnxruntime import Runner
from ptqc.passes.base import Probed, Result
from ptqc.passes.canonicalize.fold_batch_norm import FoldBatchNorm
from ptqc.passes.canonicalize.tools import rounded_otherwise
from ptqc.passes.runner import run_rewrites

# Sines of large numbers make much of a rounding, as deep networks do.
SENSITIVE = """g (float[N, 4, 6, 6] x) => (float[N, 4, 6, 6] y, int64[N, 1, 6, 6] place) {
    c = Conv(x, w)
    b = BatchNormalization(c, scale, shift, mean, variance)
    a = Mul(b, large)
    y = Sin(a)
    place = ArgMax <axis = 1> (y)
}"""
CONSTANTS = {
    "w": noise(4, 4, 1, 1),
    "scale": 1 + 0.1 * noise(4, seed=1),
    "shift": noise(4, seed=2),
    "mean": noise(4, seed=3),
    "variance": 1 + np.abs(noise(4, seed=4)),
    "large": np.float32(3e3),
}


@pytest.fixture
def model() -> ir.Model:
    return parse(SENSITIVE, **{name: np.asarray(value, np.float32) for name, value in CONSTANTS.items()})


class Doubled(FoldBatchNorm):
    """Folds, and then moves the weights by more than roundings do."""

    def apply(self, model: Probed) -> Result[Probed]:
        result = super().apply(model)
        for value in model.model.graph.initializers.values():
            if value.name != "large":
                assert value.const_value is not None
                value.const_value = ir.tensor(value.const_value.numpy() * np.float32(1 + 1e-4), name=value.name)
        return result


def test_weights_become_their_neighbours(model: ir.Model) -> None:
    other = rounded_otherwise(model)
    x = noise(8, 4, 6, 6, seed=9)
    one, two = (Runner(m, ["c"]).run({"x": x})["c"] for m in (model, other))
    difference = np.abs(one - two).max() / np.abs(one).max()
    assert 0 < difference < 1e-6
    assert "large_moved" not in other.graph.initializers


def test_a_pass_may_round_otherwise(model: ir.Model) -> None:
    run_rewrites(model, (FoldBatchNorm(),), [{"x": noise(8, 4, 6, 6, seed=9)}])
    assert "BatchNormalization" not in {node.op_type for node in model.graph}


def test_and_no_more_than_that(model: ir.Model) -> None:
    with pytest.raises(PassError, match="differs by"):
        run_rewrites(model, (Doubled(),), [{"x": noise(8, 4, 6, 6, seed=9)}])
