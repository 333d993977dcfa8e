"""Jobs of the simulation: made of what compiles took, in the blocks that compiles have."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scale
from scaling.jobs import (
    MEASURING,
    RECONSTRUCTING,
    Costs,
    Data,
    Matrix,
    costs_of,
    job_of,
    matrices_of,
    measured_solving,
    measuring_runs,
    spread_of,
    traced_blocks,
)
from scaling.probing import probed
from scaling.simulation import Cluster, simulate
from scaling.tracing import SOLVING, StageTimes, Trace, UnitTimes, trace_compile

from ptqc.passes.quantize.moments import WIDEST_GRAM

COSTS = Costs(
    solve={0: (0.0, 1e-8), 64: (0.5, 2e-3), 4096: (20.0, 0.0)},
    make=1e-9,
    send=2e-9,
    observe=1e-8,
    keep=1e-8,
    before=3e-8,
    behind=5e-8,
    measure=1e-9,
    reconstruct=2.0,
)
DATA = Data(tokens=40, length=20)
MATRICES = (Matrix(10_000, 0), Matrix(100, 64), Matrix(300, 64))


def unit(number: int, matrix: Matrix, **others: float) -> UnitTimes:
    solved = COSTS.unit(matrix, is_sent=False)
    times = {"make": solved.make, "solve": solved.solve, "thread": 0, **others}
    size = matrix.size, 1, matrix.moments, matrix.problem, matrix.size
    return UnitTimes(number, f"w{number}", matrix.channels, matrix.width, *size, **times)  # type: ignore[arg-type]


def trace_of(matrices: tuple[Matrix, ...]) -> Trace:
    """A compile that took just what COSTS say."""
    units = [unit(number, matrix) for number, matrix in enumerate(matrices)]
    numbers = sum(matrix.size for matrix in matrices)
    keeping, before = COSTS.keep * numbers, COSTS.before * numbers
    solving = sum(each.make + each.solve for each in units) + keeping + COSTS.observe * DATA.tokens * numbers
    measuring = COSTS.measure * numbers * measuring_runs(len(matrices)) * DATA.length
    reconstructing = COSTS.reconstruct * sum(each.solve for each in units)
    stages = [
        StageTimes(name, 0.0, processor, before if name == SOLVING else 0.0)
        for name, processor in ((SOLVING, solving), (MEASURING, measuring), (RECONSTRUCTING, reconstructing))
    ]
    whole = before + solving + measuring + reconstructing + COSTS.behind * numbers
    place = "m", "threads", 1, numbers, DATA.tokens, DATA.length
    return Trace(*place, stages, units, keeping, 0.0, whole, True)


def test_costs_are_found_again() -> None:
    result = costs_of([trace_of(MATRICES)], [replace(trace_of(MATRICES), units=[])])
    assert result.solve[64] == pytest.approx(COSTS.solve[64])
    assert result.spread == 0
    for name in ("make", "observe", "keep", "before", "behind", "measure", "reconstruct"):
        assert getattr(result, name) == pytest.approx(getattr(COSTS, name)), name


def test_a_trace_that_took_what_costs_say_is_simulated_as_it_was() -> None:
    trace = trace_of(MATRICES)
    job = job_of(matrices_of(trace), COSTS, DATA, 1, is_sent=False)
    result = simulate(job, Cluster(1, makes_alone=False))
    assert result.seconds == pytest.approx(trace.processor)
    assert result.solving == pytest.approx(measured_solving(trace, 1))


def test_what_is_measured_is_the_thread_that_did_most() -> None:
    trace = trace_of(MATRICES)
    alone = measured_solving(trace, 1)
    first, *others = trace.units
    trace.units[:] = [replace(first, thread=1), *others]
    assert measured_solving(trace, 1) == pytest.approx(alone - first.make - first.solve)


def test_blocks_have_room_for_the_moments_of_both_splits() -> None:
    wide = Matrix(8, 4096)  # 64 MiB of moments
    trace = trace_of((wide,) * 5)
    assert [len(block) for block in traced_blocks(trace)] == [2, 2, 1]
    assert [len(block.units) for block in job_of([wide] * 5, COSTS, DATA, 1, is_sent=True).blocks] == [2, 2, 1]
    assert [len(block.units) for block in job_of([wide] * 5, COSTS, DATA, 1, is_sent=True, room=2**30).blocks] == [5]


def test_what_is_sent_goes_over_the_link_and_costs_the_compile_time() -> None:
    (here,), (there,) = (job_of(MATRICES[1:2], COSTS, DATA, 1, is_sent=sent).blocks[0].units for sent in (False, True))
    assert (here.problem, here.result) == (0, 0)
    assert there.problem == 4 * 6400 + 2 * 4 * 64**2
    assert there.result == 6400
    assert there.make - here.make == pytest.approx(COSTS.send * (there.problem + there.result))


def test_beyond_the_widest_gram_only_diagonals_are_sent() -> None:
    assert Matrix(1, WIDEST_GRAM + 1).moments == 4 * (WIDEST_GRAM + 1)


def test_spread_is_that_of_units_of_one_shape() -> None:
    logs = np.array([0.1, -0.1, 0.3, -0.3])
    units = [unit(0, MATRICES[1], solve=float(np.exp(log))) for log in logs]
    others = [unit(0, MATRICES[2], solve=100.0)]
    assert spread_of([*units, *others]) == pytest.approx(float(logs.std(ddof=1)))


@pytest.mark.parametrize(("weights", "runs"), [(1, 2.5), (8, 6.0), (9, 4.5), (203, 6.0)])
def test_few_weights_are_measured_however_many_there_are(weights: int, runs: float) -> None:
    assert measuring_runs(weights) == runs


def test_large_models_have_their_parameters() -> None:
    sizes = {name: sum(matrix.size for matrix in scale.weights_of(shape)) for name, shape in scale.LARGE.items()}
    assert sizes["7 B"] == pytest.approx(6.74e9, rel=0.01)
    assert sizes["70 B"] == pytest.approx(69.0e9, rel=0.01)


def test_more_workers_are_not_slower() -> None:
    hours = [row["hours"] for row in scale.rows_of(scale.read_costs(scale.COSTS)) if row["room"] == "16 GiB"]
    for model in (hours[: len(scale.WORKERS)], hours[len(scale.WORKERS) :]):
        assert model == sorted(model, reverse=True)


def test_a_probe_takes_longer_for_more_outputs() -> None:
    few, many = probed([64], outputs=(64, 4096))
    assert (few.width, few.channels, few.forms) == (64, 64, 1)
    assert 0 < few.solve < many.solve


@pytest.mark.slow
def test_a_compile_is_traced(tmp_path: Path) -> None:
    import random_llama

    shape = random_llama.Shape(1, 32, 2, 1, 48, 64)
    random_llama.write(shape, tmp_path / "model.onnx")
    np.savez(tmp_path / "data.npz", tokens=random_llama.samples(shape, 4, 8))
    out = tmp_path / "trace.json"
    options: dict[str, Any] = {"bits": (4,), "activations": "float", "observer": "minmax"}
    trace_compile(tmp_path / "model.onnx", tmp_path / "data.npz", tmp_path, "20bit", "threads", 2, out, **options)
    (result,) = scale._read_traces([out])
    assert result.is_whole
    assert result.numbers >= sum(unit.size for unit in result.units) >= shape.parameters
    assert {unit.number for unit in result.units} == set(range(len(result.units)))
    assert sum(each.make + each.solve for each in result.units) < result.stage(SOLVING).processor
    assert 0 < result.stage(SOLVING).before < result.processor
