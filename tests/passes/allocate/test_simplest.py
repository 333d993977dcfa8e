"""A file never loses more than weights rounded to nearest with float activations, but for time that is worth it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from compiling import Measured, measure_residual

from ptqc.budget import parse_budgets
from ptqc.execution.onnxruntime import Runner
from ptqc.formats import Integer, TwoOfFour
from ptqc.ir.nodes import initial
from ptqc.ir.plan import Plan
from ptqc.passes.allocate.activations_in_float import in_float
from ptqc.passes.allocate.fit import HeldBackLoss
from ptqc.passes.allocate.simplest import PlanBuilder, or_simpler, rounded_to_nearest
from ptqc.passes.allocate.state import CompileState, QuantizedModel

LIMIT = 20_000


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    return measure_residual(tmp_path_factory.mktemp("simplest"), activations="auto")


def job_of(measured: Measured) -> CompileState:
    budgets = parse_budgets(LIMIT)
    return CompileState(measured.prepared, measured.context, measured.options, (), "", budgets, 0.0)


def taken(measured: Measured, plan: Plan) -> tuple[QuantizedModel, QuantizedModel, CompileState]:
    """A plan's file, what is delivered in place of it, and the compile with its activations."""
    job, fitted = job_of(measured), measured.fit(None, plan)
    loss = HeldBackLoss.of(job.analysis)
    builder = PlanBuilder(job.analysis, lambda other: replace(measured, context=other).fit(LIMIT), "usual", loss)
    after, result = or_simpler(job, fitted, builder)
    return fitted, result, after


def test_rounding_to_nearest_is_that_of_numpy(measured: Measured) -> None:
    simple = rounded_to_nearest(in_float(measured.context), measured.options, LIMIT)
    assert simple.exported.size <= LIMIT
    for weight in simple.plan.weights:
        values = initial(measured.model, weight.name)
        form = simple.plan.formats[weight.name]
        assert isinstance(form, Integer)
        result = simple.tuned.weights[weight.name]
        scale = result.scale.reshape([-1 if axis == weight.channel_axis else 1 for axis in range(values.ndim)])
        inside = np.abs(values / scale) < 2 ** (form.bits - 1) - 1
        assert np.all(np.abs(values - result.weight)[inside] <= 0.5001 * np.broadcast_to(scale, values.shape)[inside])


def test_a_worse_file_is_not_delivered(measured: Measured) -> None:
    """Two bits for every weight, where the bytes hold more."""
    plan = measured.context.undecided.with_formats({w.name: Integer(2) for w in measured.context.weights})
    fitted, result, job = taken(measured, plan)
    assert result is not fitted
    assert not job.analysis.activations
    assert [note.step for note in job.notes] == ["never-worse"]
    loss = HeldBackLoss(measured.model, measured.context.held_back, measured.context.kinds)
    simple = rounded_to_nearest(in_float(measured.context), measured.options, LIMIT)
    assert loss(result.exported.proto) <= loss(simple.exported.proto) < loss(fitted.exported.proto)
    (name,) = [output.name for output in measured.model.graph.outputs]
    real = [Runner(measured.model).run(feeds)[str(name)] for feeds in measured.feeds]
    packed = [Runner(result.exported.proto).run(feeds)[str(name)] for feeds in measured.feeds]
    assert np.square(np.subtract(real, packed)).mean() < 0.01 * np.var(real)


def test_a_good_file_stays(measured: Measured) -> None:
    fitted, result, job = taken(measured, measured.fit(LIMIT).plan)
    assert result is fitted
    assert job.notes == ()


def test_pruned_weights_stay_as_they_were_solved(tmp_path: Path) -> None:
    """Rounding to nearest would fill the zeros that the format needs."""
    measured = measure_residual(tmp_path, activations="auto", sparsity="2:4")
    simple = rounded_to_nearest(in_float(measured.context), measured.options, None)
    pruned = [name for name, form in simple.plan.formats.items() if isinstance(form, TwoOfFour)]
    assert pruned
    for name in pruned:
        assert simple.tuned.weights[name] is measured.context.solutions[name, simple.plan.formats[name]]
