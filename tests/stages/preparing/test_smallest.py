"""The bound is below every file and not far below the smallest one; the estimate is near it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from compiling import Measured, measure_residual, proto, weight

from ptqc.formats import Codebook, VectorCodebook
from ptqc.solvers.allocation import smallest_choice
from ptqc.stages.preparing.smallest import estimated_size, lower_bound
from ptqc.stages.problem import problem_of

BITS = (2, 4, 7)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    return measure_residual(tmp_path_factory.mktemp("residual"), bits=BITS)


@pytest.mark.parametrize("on_codes", [False, True])
def test_no_file_is_below_the_bound(measured: Measured, on_codes: bool) -> None:
    context = measured.context
    plan = replace(context.roles, activations=context.ranges if on_codes else {})
    problem = problem_of(context, plan, measured.options)
    smallest = problem.size(smallest_choice(problem))
    assert 0.4 * smallest < lower_bound(measured.model, BITS).bytes < smallest
    even = tuple(c for c in problem.candidates if not isinstance(c.form, Codebook | VectorCodebook))
    on_grids = problem.size(smallest_choice(replace(problem, candidates=even)))
    assert estimated_size(measured.model, BITS) == pytest.approx(on_grids, rel=0.35 if on_codes else 0.1)


def test_the_estimate_needs_no_sample_and_draws_the_same(measured: Measured) -> None:
    assert estimated_size(measured.model, BITS) == estimated_size(measured.model, BITS)
    assert estimated_size(measured.model, (4, 7)) > estimated_size(measured.model, BITS)


def parts(graph: str, bits: tuple[int, ...], **constants: np.ndarray) -> dict[str, int]:
    return dict(lower_bound(ir.from_proto(proto(graph, **constants)), bits).parts)


@pytest.mark.parametrize(("bits", "each"), [((4,), 4), ((5, 8), 5), ((3, 2), 2)])
def test_weights_count_with_the_narrowest_format(bits: tuple[int, ...], each: int) -> None:
    """A channel of 63 numbers has no pairs."""
    found = parts("g (float[N,63] x) => (float[N,32] y) { y = MatMul(x, w) }", bits, w=weight(63, 32))
    assert found["w"] == 63 * 32 * each // 8


def test_equal_weights_count_once_and_masks_with_their_palette() -> None:
    graph = """g (float[16,64] x) => (float[16,64] y) {
        a = Gemm<transB=1>(x, v) b = Gemm<transB=1>(a, w) y = Mul(b, m)
    }"""
    same, mask = weight(64, 64), np.resize(np.array([0, 1], np.float32), (16, 64))
    found = parts(graph, (2, 4), v=same, w=same, m=mask)
    assert "w" not in found
    assert found["v"] == 64 * 64 * 3 // 16  # in pairs of 3 bits
    assert found["m"] == 16 * 64 // 8


def test_the_projects_own_model() -> None:
    path = Path(__file__).parents[3] / "models" / "tiny_mlp.onnx"
    model = ir.load(path)
    before = str(model)
    assert lower_bound(model, (2,)).bytes < estimated_size(model, (2,)) < path.stat().st_size
    assert str(model) == before
