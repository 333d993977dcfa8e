"""How many classes a loss changes, against noise that is really drawn."""

import numpy as np
import pytest

from ptqc.losses.classes import Logits
from ptqc.passes.allocate.constraints.criteria import Flips


@pytest.fixture(scope="module")
def scores() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((2000, 10)) * 2


@pytest.mark.parametrize("sigma", [0.02, 0.1, 0.3])
def test_noise_changes_about_as_many_as_its_loss_says(scores: np.ndarray, sigma: float) -> None:
    kind, random = Logits(1), np.random.default_rng(1)
    noisy = [scores + sigma * random.standard_normal(scores.shape) for _ in range(8)]
    loss = np.mean([kind.losses(scores, z)[""] for z in noisy])
    share = 1 - np.mean([kind.same(scores, z) for z in noisy])
    flips = Flips.of(kind, [scores])
    assert flips.share(float(loss)) == pytest.approx(share, rel=0.15)
    assert flips.loss(float(share), 1.0) == pytest.approx(loss, rel=0.3)


def test_no_more_loss_than_is_allowed(scores: np.ndarray) -> None:
    assert Flips.of(Logits(1), [scores]).loss(0.9, 0.02) == pytest.approx(0.02)


def test_one_class_never_changes() -> None:
    assert Flips.of(Logits(1), [np.ones((4, 1))]).share(1.0) < 1e-6
