import numpy as np
import pytest
from graphs import noise

from ptqc import codebooks, grids
from ptqc.formats import Format, codebook, integer
from ptqc.solutions import Solution

torch = pytest.importorskip("torch", reason="torch is not installed")

from ptqc.passes.latent_codes import LatentCodes  # noqa: E402

FORMATS = [integer(2), integer(3), integer(4), integer(8), codebook(3)]


def solution(weight: np.ndarray, form: Format, axis: int) -> Solution:
    if form == codebook(3):
        return Solution(form, *codebooks.round_nearest(weight, axis, form), axis)
    return Solution(form, *grids.round_nearest(weight, axis, form), axis)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("form", FORMATS)
def test_the_start_is_the_code_that_is_there(form: Format, axis: int) -> None:
    weight = noise(6, 9)
    made = solution(weight, form, axis)
    found = LatentCodes.of(made, weight)
    np.testing.assert_array_equal(found.rounded().numpy(), made.codes)
    np.testing.assert_array_equal(found.codes().detach().numpy(), made.codes)
    elsewhere = LatentCodes.of(made, -3 * weight)
    np.testing.assert_array_equal(elsewhere.rounded().numpy(), made.codes)


@pytest.mark.parametrize("form", FORMATS)
def test_codes_move_along_the_levels_and_no_further(form: Format) -> None:
    made = solution(noise(4, 7), form, 0)
    found = LatentCodes.of(made, made.weight)
    with torch.no_grad():
        found.position.add_(1)
    levels = found.levels.numpy()
    expected = levels[np.minimum(np.searchsorted(levels, made.codes) + 1, len(levels) - 1)]
    np.testing.assert_array_equal(found.rounded().numpy(), expected)


def test_gradients_pass_the_rounding() -> None:
    made = solution(noise(4, 7), integer(3), 0)
    found = LatentCodes.of(made, noise(4, 7))
    (found.codes() * torch.from_numpy(noise(4, 7, seed=1))).sum().backward()
    assert found.position.grad is not None
    np.testing.assert_array_equal(found.position.grad.numpy(), noise(4, 7, seed=1))
