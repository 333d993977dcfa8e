import numpy as np
import pytest
from graphs import noise

from ptqc.formats import Codebook, Integer, Scaled, VectorCodebook
from ptqc.ir.quantized_weight import QuantizedWeight

torch = pytest.importorskip("torch", reason="torch is not installed")

from ptqc.passes.reconstruct.gradients import LatentCodes, LatentPairs, latent  # noqa: E402

FORMATS = [Integer(2), Integer(3), Integer(4), Integer(8), Codebook(3)]


def solution(weight: np.ndarray, form: Scaled, axis: int) -> QuantizedWeight:
    return QuantizedWeight(form, *form.rounded(weight, axis), axis)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("form", FORMATS)
def test_the_start_is_the_code_that_is_there(form: Scaled, axis: int) -> None:
    weight = noise(6, 9)
    made = solution(weight, form, axis)
    result = latent(made, weight)
    np.testing.assert_array_equal(result.rounded().numpy(), made.codes)
    np.testing.assert_array_equal(result.codes().detach().numpy(), made.codes)
    elsewhere = latent(made, -3 * weight)
    np.testing.assert_array_equal(elsewhere.rounded().numpy(), made.codes)


@pytest.mark.parametrize("form", FORMATS)
def test_codes_move_along_the_levels_and_no_further(form: Scaled) -> None:
    made = solution(noise(4, 7), form, 0)
    result = latent(made, made.weight)
    assert isinstance(result, LatentCodes)
    with torch.no_grad():
        result.position.add_(1)
    levels = result.levels.numpy()
    expected = levels[np.minimum(np.searchsorted(levels, made.codes) + 1, len(levels) - 1)]
    np.testing.assert_array_equal(result.rounded().numpy(), expected)


def test_gradients_pass_the_rounding() -> None:
    made = solution(noise(4, 7), Integer(3), 0)
    result = latent(made, noise(4, 7))
    (result.codes() * torch.from_numpy(noise(4, 7, seed=1))).sum().backward()
    assert result.position.grad is not None
    np.testing.assert_array_equal(result.position.grad.numpy(), noise(4, 7, seed=1))


def in_pairs(weight: np.ndarray) -> QuantizedWeight:
    return solution(weight, VectorCodebook(4), 0)


@pytest.mark.parametrize("away", [1.0, -3.0])
def test_pairs_start_where_they_are(away: float) -> None:
    weight = noise(16, 24)
    made = in_pairs(weight)
    result = latent(made, away * weight)
    np.testing.assert_array_equal(result.rounded().numpy(), made.codes)
    np.testing.assert_array_equal(result.codes().detach().numpy(), made.codes)


def test_pairs_move_to_the_level_that_a_gradient_asks_for() -> None:
    made = in_pairs(noise(16, 24))
    result = latent(made, made.weight)
    assert isinstance(result, LatentPairs)
    wanted = result.near[result.index, 3].numpy()  # a near level, but not the next one
    optimizer = torch.optim.Adam([result.position], lr=0.05)
    for _ in range(400):
        optimizer.zero_grad()
        (result.codes() - result.levels[wanted].reshape(result.shape)).square().sum().backward()
        optimizer.step()
    np.testing.assert_array_equal(result.index.numpy(), wanted)
