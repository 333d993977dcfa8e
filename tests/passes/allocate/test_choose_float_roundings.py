from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse
from measuring import measured as measure

from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.formats import BFLOAT16, rounded_to, to_bfloat16
from ptqc.losses import OutputLoss
from ptqc.passes.allocate.choose_activations import ChooseFloatRoundings, _cheapest
from ptqc.passes.quantize.phases import Analysis, Sensitivities

SHARE = 0.25
# A layer of 3 channels, a depthwise one, and two whose inputs are pairs of channels, the last one behind a pool.
BODY = """g (float[N, 3, 8, 8] x) => (float[N, 4, 8, 8] y) {
    a = Conv(x, first)
    r = Relu(a)
    d = Conv <group = 4, pads = [1, 1, 1, 1]> (r, depth)
    e = Conv(d, point)
    p = MaxPool <kernel_shape = [1, 1]> (e)
    y = Conv(p, other)
}"""
CONSTANTS = {
    "first": noise(4, 3, 1, 1, scale=0.4),
    "depth": noise(4, 1, 3, 3, seed=1, scale=0.4),
    "point": noise(4, 4, 1, 1, seed=2),
    "other": noise(4, 4, 1, 1, seed=3),
}


@pytest.fixture(scope="module")
def model() -> ir.Model:
    return parse(BODY, **CONSTANTS)


@pytest.fixture(scope="module")
def measured(model: ir.Model, tmp_path_factory: pytest.TempPathFactory) -> Sensitivities:
    feeds: list[Feeds] = [{"x": noise(1, 3, 8, 8, seed=seed)} for seed in range(28)]
    return measure(model, feeds, tmp_path_factory.mktemp("samples"), (2, 4))


@pytest.fixture
def context(measured: Sensitivities) -> Analysis:
    """A copy to write on, with nothing quantized."""
    return Analysis.after(measured)


def loss_by_hand(model: ir.Model, context: Analysis) -> float:
    """With d and e rounded in NumPy, each layer computed by ONNX Runtime on its own."""
    batches = list(context.held_back.batches(8))
    real = list(map(Runner(model).run, batches))
    inside = [run["d"] for run in map(Runner(model, ["d"]).run, batches)]
    point, other = (CONSTANTS[name].reshape(4, 4).astype(np.float64) for name in ("point", "other"))

    def product(weight: np.ndarray, x: np.ndarray) -> np.ndarray:
        return np.einsum("oi,nihw->nohw", weight, x).astype(np.float32)

    result = [{"y": product(other, to_bfloat16(product(point, to_bfloat16(d))))} for d in inside]
    loss = OutputLoss.of(context.kinds, real)
    losses = [loss(a, b) for a, b in zip(real, result, strict=True)]
    return float(np.average(losses, weights=[len(outputs["y"]) for outputs in real]))


def test_inputs_of_layers_in_float_are_rounded(model: ir.Model, context: Analysis) -> None:
    """Not that of three channels, whose pairs would be cut, and not that of a depthwise layer."""
    result = ChooseFloatRoundings(BFLOAT16, share=SHARE).apply(context)
    context, notes = result.output, result.notes
    assert notes == ()
    assert set(rounded_to(context.activations)) == {"d", "e"}
    assert context.activation_loss == pytest.approx(loss_by_hand(model, context), rel=0.01)
    assert 0 < context.activation_loss < 1e-4


def test_what_layers_on_codes_read_is_not(context: Analysis) -> None:
    context = replace(context, activations=dict(context.ranges))
    result = ChooseFloatRoundings(BFLOAT16, share=SHARE).apply(context)
    context, notes = result.output, result.notes
    assert notes == ()
    assert not rounded_to(context.activations)
    context = replace(context, activations={name: context.ranges[name] for name in ("x", "r", "d")})
    context = ChooseFloatRoundings(BFLOAT16, share=SHARE).apply(context).output
    assert set(rounded_to(context.activations)) == {"e"}


def test_the_loss_keeps_its_share_of_the_limit(context: Analysis) -> None:
    context = ChooseFloatRoundings(BFLOAT16, share=SHARE).apply(context).output
    both = context.activation_loss
    for room, few in ((1.1, 2), (0.9, 1), (1e-6, 0)):
        context = replace(context, activations={}, activation_loss=0.0)
        context = ChooseFloatRoundings(BFLOAT16, share=SHARE, limit=room * both / SHARE).apply(context).output
        assert len(set(rounded_to(context.activations))) == few, room
        assert context.activation_loss <= room * both


def test_of_two_the_one_that_loses_less_for_its_products_is_taken(context: Analysis) -> None:
    context = ChooseFloatRoundings(BFLOAT16, share=SHARE).apply(context).output
    limit = 0.9 * context.activation_loss / SHARE
    taken = set()
    for gains in ({"e": 1, "y": 1000}, {"e": 1000, "y": 1}):
        context = replace(context, macs={**context.macs, **gains})
        context = replace(context, activations={}, activation_loss=0.0)
        context = ChooseFloatRoundings(BFLOAT16, share=SHARE, limit=limit).apply(context).output
        taken |= set(rounded_to(context.activations))
    assert taken == {"d", "e"}


def test_a_site_that_loses_too_much_does_not_keep_the_others_out() -> None:
    losses = {"costly": 1.0, "a": 0.01, "b": 0.02, "c": 0.5}
    assert _cheapest(list(losses), losses, 0.7) == ["a", "b", "c"]
    assert _cheapest(list(losses), losses, 0.1) == ["a", "b"]
    assert _cheapest(list(losses), losses, 0.0) == []
