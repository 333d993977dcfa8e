"""The bytes that numbers take are counted as they are settled, and saved where they are too many."""

import numpy as np
import pytest
from compiling import Measured, measure_residual

from ptqc.formats import Integer, QuantParams
from ptqc.formats.activations import UINT8
from ptqc.formats.entropy import Entropy
from ptqc.ir.integer_arithmetic import FEW, MANY, bias_reach, bits_for
from ptqc.ir.plan import Plan
from ptqc.passes.allocate.file_account import MARGIN, FileAccount
from ptqc.passes.allocate.problem import packed, weighed
from ptqc.passes.quantize.phases import AnalyzedPlan
from ptqc.passes.reconstruct.reconstruct import reconstruct_all

LIMIT = 100_000


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Entropy, "from_numbers", 0)  # the network is smaller than those that gain by them
        return measure_residual(tmp_path_factory.mktemp("entropy"), bits=(4, 5), formats=("int", "entropy"))


@pytest.fixture(scope="module")
def plan(measured: Measured) -> Plan:
    """Entropy codes for the weights that are solved in them."""
    return measured.context.undecided.with_formats(
        dict(sorted(measured.context.solutions, key=lambda each: each[1].by_rate))
    )


def test_what_is_left_is_what_the_file_does_not_take(measured: Measured, plan: Plan) -> None:
    assert any(form.by_rate for form in plan.formats.values())
    (tuned,) = reconstruct_all(AnalyzedPlan(measured.context, plan), [0])
    account = FileAccount.open(measured.context, measured.options, plan, LIMIT)
    assert account is not None
    for layer in plan.layers:
        bias = tuned.biases[layer.name]
        assert bias is not None
        assert not account.is_short(layer, tuned.weights[layer.weight], bias)
        account.take(layer, tuned.weights[layer.weight], bias)
    assert abs(LIMIT - packed(measured.context, plan, tuned)[1].size - account.left) <= MARGIN


def test_a_file_that_would_be_too_large_gets_larger_scales(measured: Measured, plan: Plan) -> None:
    planned = AnalyzedPlan(measured.context, plan)
    (free,) = reconstruct_all(planned, [0])
    limit = weighed(measured.context, measured.options, plan)
    (bound,) = reconstruct_all(planned, [0], FileAccount.open(planned.analysis, measured.options, plan, limit))
    scales = {name: (free.weights[name].scale, bound.weights[name].scale) for name in plan.formats}
    changed = [layer.weight for layer in plan.layers if not np.array_equal(*scales[layer.weight])]
    assert plan.formats[changed[0]].by_rate
    assert packed(measured.context, plan, bound)[1].size <= limit


def test_without_a_limit_nothing_is_counted(measured: Measured, plan: Plan) -> None:
    assert FileAccount.open(measured.context, measured.options, plan, None) is None


@pytest.mark.parametrize("scale", [0.01, 0.25, 3.0])
@pytest.mark.parametrize("form", [Integer(4), Entropy(8)])
def test_a_bias_within_reach_takes_no_more_bits(scale: float, form: Integer | Entropy) -> None:
    y = QuantParams(UINT8, scale, 0)
    reach = bias_reach(form, np.array([scale], np.float32), y)
    assert bits_for(form, np.array([reach], np.float32), y) == FEW
    assert bits_for(form, np.array([1.01 * reach], np.float32), y) == MANY
    assert bias_reach(form, np.array([1.01 * reach], np.float32), y) == np.inf
    assert bias_reach(form, np.array([scale], np.float32), None) == np.inf
