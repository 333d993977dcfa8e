"""The bound is below every file and not far below the smallest one; the estimate is near it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from compiling import Measured, measure_residual, proto, weight

import ptqc
from ptqc.errors import Infeasible
from ptqc.passes.allocate.allocation import smallest_choice
from ptqc.passes.allocate.problem import problem_of
from ptqc.passes.allocate.smallest import estimated_size, lower_bound

BITS = (2, 4, 7)
MODELS = Path(__file__).parents[3] / "models"
DIGITS, GRU = "digits_resnet_dw", "tiny_gru_tagger"


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
    assert lower_bound(measured.model, BITS, ("tcq",)).bytes <= lower_bound(measured.model, BITS, ("int",)).bytes
    assert 0.98 * smallest <= estimated_size(measured.model, BITS) < 1.1 * smallest


def test_the_estimate_needs_no_sample_and_draws_the_same(measured: Measured) -> None:
    assert estimated_size(measured.model, BITS) == estimated_size(measured.model, BITS)
    assert estimated_size(measured.model, (4, 7)) > estimated_size(measured.model, BITS)


def parts(graph: str, bits: tuple[int, ...], **constants: np.ndarray) -> dict[str, int]:
    return dict(lower_bound(ir.from_proto(proto(graph, **constants)), bits).parts)


@pytest.mark.parametrize(("bits", "each"), [((4,), 4), ((5, 8), 5), ((3, 2), 2)])
def test_weights_count_with_the_narrowest_format(bits: tuple[int, ...], each: int) -> None:
    """A channel of 63 numbers has no pairs."""
    result = parts("g (float[N,63] x) => (float[N,32] y) { y = MatMul(x, w) }", bits, w=weight(63, 32))
    assert result["w"] == 63 * 32 * each // 8


def test_equal_weights_count_once_and_masks_with_their_palette() -> None:
    graph = """g (float[16,64] x) => (float[16,64] y) {
        a = Gemm<transB=1>(x, v) b = Gemm<transB=1>(a, w) y = Mul(b, m)
    }"""
    same, mask = weight(64, 64), np.resize(np.array([0, 1], np.float32), (16, 64))
    result = parts(graph, (2, 4), v=same, w=same, m=mask)
    assert "w" not in result
    assert result["v"] == 64 * 64 * 3 // 16  # in pairs of 3 bits
    assert result["m"] == 16 * 64 // 8


def refused(folder: Path, limit: int, output: Path, cache: Path) -> int:
    """The smallest size that is told where this limit is too low."""
    with pytest.raises(Infeasible) as refusal:
        ptqc.resolve(folder, output=output, budget=f"{limit}B", cache=cache)
    return int(refusal.value.smallest)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny_mlp", DIGITS, "tiny_detector_silu", GRU])
def test_a_size_that_is_offered_works_and_one_that_is_refused_cannot_be_beaten(name: str, tmp_path: Path) -> None:
    model, cache = MODELS / f"{name}.onnx", tmp_path / "cache"
    data = MODELS / "digits_calibration.npz" if name == DIGITS else "synthetic"
    inspected = ptqc.inspect(model).found
    assert inspected is not None
    with pytest.raises(Infeasible) as early:
        ptqc.compile(model, calibration=data, output=tmp_path / "no", budget=f"{inspected.at_least - 1}B", cache=cache)
    assert early.value.smallest == inspected.smallest
    artifact = ptqc.compile(
        model, calibration=data, output=tmp_path / "offered", budget=f"{inspected.smallest}B", samples=32, cache=cache
    )
    assert artifact.path.stat().st_size <= inspected.smallest
    smallest = refused(artifact.folder, inspected.at_least, tmp_path / "no", cache)
    assert inspected.at_least <= smallest <= inspected.smallest < 1.15 * smallest
    there = ptqc.resolve(artifact.folder, output=tmp_path / "smallest", budget=f"{smallest}B", cache=cache)
    assert 0.98 * smallest < there.path.stat().st_size <= smallest
    assert refused(artifact.folder, int(0.98 * smallest), tmp_path / "no", cache) == smallest


def test_the_projects_own_model() -> None:
    path = MODELS / "tiny_mlp.onnx"
    model = ir.load(path)
    before = str(model)
    assert lower_bound(model, (2,)).bytes < estimated_size(model, (2,)) < path.stat().st_size
    assert str(model) == before
