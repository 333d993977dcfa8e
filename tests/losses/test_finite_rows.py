"""Losses where the float model is finite, as if the other rows were not there."""

import numpy as np
import pytest
from graphs import noise

from ptqc.losses import OutputLoss, comparable
from ptqc.losses.base import OutputKind
from ptqc.losses.classes import Logits
from ptqc.losses.finite_rows import finite_along
from ptqc.losses.regression import Regression
from ptqc.losses.total import HOPELESS


@pytest.mark.parametrize("kind", [Logits(2), Regression(2), Regression(None)])
def test_the_loss_is_that_of_the_finite_rows(kind: OutputKind) -> None:
    real, other = noise(2, 6, 5), noise(2, 6, 5, seed=1)
    padded = real.copy()
    padded[:, 4:] = np.nan
    cut = {"y": real[:, :4]}, {"y": other[:, :4]}
    wanted = OutputLoss.of({"y": kind}, [cut[0]])
    result = OutputLoss.of({"y": kind}, [{"y": padded}])
    assert result({"y": padded}, {"y": other}) == pytest.approx(wanted(*cut), rel=1e-6)
    assert result.mean([{"y": padded}, {"y": real}], [{"y": other}, {"y": other}]) == pytest.approx(
        wanted.mean([cut[0], {"y": real}], [cut[1], {"y": other}]), rel=1e-6
    )
    assert comparable(kind, padded, other)[1].size == cut[1]["y"].size


def test_what_is_not_finite_where_the_float_model_is_stays_hopeless() -> None:
    real, other = noise(2, 3), noise(2, 3, seed=1)
    other[0, 1] = np.inf
    assert OutputLoss.of({"y": Regression(1)}, [{"y": real}])({"y": real}, {"y": other}) == HOPELESS


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_channels_stay_on_their_axis(axis: int) -> None:
    real, other = noise(2, 3, 4), noise(2, 3, 4, seed=1)
    first, second = np.moveaxis(real, axis, -1), np.moveaxis(other, axis, -1)
    first[1, 1] = np.nan  # one row
    first[0, 0, 1] = -np.inf  # a part of one
    rows = second[np.isfinite(first).all(-1)]
    result = finite_along(axis, real, other)
    assert [array.ndim for array in result] == [3, 3]
    np.testing.assert_array_equal(np.moveaxis(result[1], axis, -1).reshape(-1, rows.shape[-1]), rows)
    assert finite_along(axis, other)[0] is other
