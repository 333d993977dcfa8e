"""Fitting: the best plan whose written file stays within the limit, a given plan, and what cannot be reached."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from compiling import Measured, measure_residual
from mostly_slow import mostly_slow

from ptqc.errors import Infeasible, UsageError
from ptqc.formats import FLOAT16, PORTABLE_BITS, Format, Integer
from ptqc.passes.allocate import fit
from ptqc.passes.allocate.fit import CLEARLY_LESS, TRIES, HeldBackLoss, better_of
from ptqc.passes.allocate.state import PackedModel, QuantizedModel
from ptqc.passes.reconstruct.reconstruct import Reconstruct
from ptqc.utils.deadline import Deadline

Fit = Callable[..., QuantizedModel]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    return measure_residual(tmp_path_factory.mktemp("residual"), bits=(2, 3, 4, 5, 6, 7, 8), activations="integer")


@pytest.fixture(scope="module")
def fitted(measured: Measured) -> Fit:
    """The file within a limit, fitted once for all tests that read it."""
    return cache(measured.fit)


@pytest.fixture(scope="module")
def measured_few(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    return measure_residual(tmp_path_factory.mktemp("few"), bits=(3, 4, 8), activations="integer")


@pytest.mark.slow
def test_more_bytes_never_predict_more_loss(measured: Measured) -> None:
    fits = [measured.fit(limit) for limit in (6_500, 9_000, 12_000, 15_000)]
    losses = [fitted.allocation.loss for fitted in fits]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > 10 * losses[-1]


@pytest.mark.parametrize("limit", mostly_slow([6_300, 7_001, 10_000, 13_333], 6_300, 10_000))
def test_the_written_file_keeps_the_limit(measured: Measured, limit: int) -> None:
    fitted = measured.fit(limit)
    assert fitted.allocation.bytes <= limit
    assert 0.85 * limit <= len(fitted.exported.data) <= limit


def test_a_plan_over_the_limit_is_refused(measured: Measured, fitted: Fit) -> None:
    with pytest.raises(UsageError, match=r"given plan has .* over the budget of 7,000"):
        measured.fit(7_000, fitted(9_000).plan)


def test_no_limit_takes_the_best_of_every_weight(measured: Measured, fitted: Fit) -> None:
    best = fitted()
    widest = {weight.name: Integer(PORTABLE_BITS) for weight in measured.context.weights}
    assert best.plan.formats == widest
    assert measured.fit(10**9).exported.data == best.exported.data


def test_integer_layers_get_no_saturating_weights_unless_allowed(measured: Measured, fitted: Fit) -> None:
    assert Integer(8) not in fitted().plan.formats.values()
    options = replace(measured.options, allow_8bit=True)
    assert Integer(8) not in replace(measured, options=options).fit().plan.formats.values()
    on_arm = replace(measured, options=replace(options, runtime="arm"))
    assert set(on_arm.fit().plan.formats.values()) == {Integer(8)}


def test_a_limit_below_the_smallest_file_is_infeasible(measured: Measured) -> None:
    with pytest.raises(Infeasible, match="5,000 bytes cannot be met") as refusal:
        measured.fit(5_000)
    assert len(measured.fit(refusal.value.smallest).exported.data) <= refusal.value.smallest


def test_the_smallest_plan_takes_another_draw_where_the_one_asked_for_is_too_large(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Larger(PackedModel):
        @property
        def size(self) -> int:
            return self.exported.size + 100

    def larger(*arguments: Any) -> PackedModel:
        file = right(*arguments)
        return Larger(file.tuned, file.lowered, file.exported) if file.tuned.draw == 1 else file

    with pytest.raises(Infeasible) as refusal:
        measured.fit(5_000)
    right = fit._file
    monkeypatch.setattr(fit, "_file", larger)
    one_draw = replace(measured, context=replace(measured.context, draws=(1,)))
    assert one_draw.fit(refusal.value.smallest).tuned.draw == 0
    assert one_draw.fit(10_000).tuned.draw == 1


def test_the_smallest_file_is_found_where_the_solver_is_told_too_many_bytes(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Infeasible) as refusal:
        measured.fit(5_000)
    smallest, right = refusal.value.smallest, fit.problem_of
    monkeypatch.setattr(
        fit, "problem_of", lambda *arguments: replace(made := right(*arguments), fixed=made.fixed + 100)
    )
    delivered = measured.fit(smallest)
    assert len(delivered.exported.data) <= smallest == delivered.allocation.limit
    with pytest.raises(Infeasible) as refusal:
        measured.fit(smallest - 100)
    assert refusal.value.smallest == smallest


def test_bytes_that_a_file_turns_out_not_to_need_are_spent(
    measured: Measured, fitted: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where tuned layers need no bias: the numbers of the table have one, and the solver is told its bytes."""
    best, problem_of, weighed = fitted(9_000), fit.problem_of, fit.weighed
    monkeypatch.setattr(
        fit, "problem_of", lambda *arguments: replace(made := problem_of(*arguments), fixed=made.fixed + 400)
    )
    monkeypatch.setattr(fit, "weighed", lambda *arguments: weighed(*arguments) + 400)
    # Which of the two files loses less differs between processors by the last digits of their sums.
    monkeypatch.setattr(fit, "better_of", lambda _analysis, _first, second, _limit: second)
    delivered = measured.fit(9_000)
    assert len(delivered.exported.data) <= 9_000
    assert delivered.allocation.loss <= best.allocation.loss / CLEARLY_LESS
    assert delivered.allocation.status == "optimal"


def test_a_plan_that_loses_more_than_predicted_is_not_taken_and_nothing_is_called_proven(
    measured: Measured, fitted: Fit
) -> None:
    first, second = fitted(9_000), fitted(12_000)
    delivered = better_of(HeldBackLoss.of(measured.context), first, second, 9_000)
    assert delivered.packed is first.packed
    assert (delivered.allocation.status, delivered.allocation.bound) == ("gap", second.allocation.bound)
    assert better_of(HeldBackLoss.of(measured.context), first, second, 12_000) is second


def test_a_given_plan_is_followed(measured: Measured, fitted: Fit) -> None:
    best = fitted(9_000)
    other = best.plan.with_formats({**best.plan.formats, "w1": Integer(4)})
    delivered = measured.fit(None, other)
    assert delivered.plan == other
    assert delivered.allocation.status == "given"
    assert delivered.allocation.loss != best.allocation.loss


@pytest.mark.parametrize("form", mostly_slow(["int2", "int8", "float16"], "int8"))
def test_a_given_plan_with_a_format_that_is_not_to_be_had_is_refused(measured_few: Measured, form: str) -> None:
    plan = measured_few.fit().plan
    known = "codebook3, codebook4, int3, int4"
    with pytest.raises(UsageError, match=f"weight 'w1' as {form}; its kernel and the measurements allow {known}$"):
        measured_few.fit(None, replace(plan, formats={**plan.formats, "w1": Format.parse(form)}))


def test_a_given_plan_may_leave_activations_and_weights_float(measured_few: Measured) -> None:
    plan = replace(measured_few.fit().plan, activations={})
    other = plan.with_formats({**plan.formats, "w1": FLOAT16})
    assert measured_few.fit(None, other).plan == other


def test_the_same_request_gives_the_same_bytes(measured: Measured, fitted: Fit) -> None:
    assert fitted(9_000).exported.data == measured.fit(9_000).exported.data


def test_tuned_numbers_are_those_of_the_file(fitted: Fit) -> None:
    best = fitted(9_000)
    codes = best.lowered.model.graph.initializers["w3/codes"].const_value
    assert codes is not None
    assert np.array_equal(codes.numpy(), best.tuned.weights["w3"].codes)
    assert best.tuned.weights["w3"].form == best.plan.formats["w3"]


def test_reconstruction_changes_the_table(measured: Measured, fitted: Fit) -> None:
    """Behind quantized layers other codes fit better than those found on float inputs."""
    small = fitted(6_200)
    tables = {name: measured.context.solutions[name, form] for name, form in small.plan.formats.items()}
    assert any(not np.array_equal(small.tuned.weights[name].codes, table.codes) for name, table in tables.items())


def test_the_best_of_several_reconstructions_is_taken(
    measured: Measured, fitted: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the tries alone has at least the held-back loss of the one delivered."""
    loss = HeldBackLoss(measured.model, measured.context.held_back, measured.context.kinds)
    best = loss(fitted(6_200).exported.proto)
    alone = []
    for draw in range(TRIES["light"]):
        with monkeypatch.context() as patched:
            patched.setattr(
                fit, "reconstruct_all", lambda value, *_, draw=draw, **__: [Reconstruct(draw).apply(value).output]
            )
            alone.append(loss(measured.fit(6_200).exported.proto))
    assert best == min(alone)
    assert len(set(alone)) > 1


def test_a_time_limit_leaves_out_further_reconstructions(measured: Measured, fitted: Fit) -> None:
    late = replace(measured.context, deadline=Deadline(0.0))
    cut_short = replace(measured, context=late).fit(6_200)
    assert [str(note) for note in cut_short.notes] == [
        f"[time-limit] cut short: there was time for 1 of {TRIES['light']} reconstructions",
        "[time-limit] cut short: there was time for reconstruction with 4 of 32 samples",
        "[time-limit] cut short: there was time for the reconstruction of 0 of 4 layers",
    ]
    assert len(cut_short.exported.data) <= 6_200
    assert not fitted(6_200).notes
