"""Inputs at the ends of what samples hold."""

import numpy as np

from ptqc.codegen.program.inputs import edges, extents


def test_samples_with_and_without_a_cache() -> None:
    """A cache may be empty in some samples, the first one or another."""
    filled, empty = {"past": np.array([[-1.0, 2.0]], np.float32)}, {"past": np.zeros((1, 0), np.float32)}
    for samples in ([filled, empty], [empty, filled]):
        result = extents(samples)["past"]
        assert (result.low, result.high) == (-1.0, 2.0)
        assert result.shape == samples[0]["past"].shape


def test_all_kinds_keep_to_the_extents() -> None:
    made = dict(edges(extents([{"x": np.array([[-1.0, 3.0]], np.float32)}, {"x": np.array([[0.0, 5.0]], np.float32)}])))
    assert made["lowest"]["x"].tolist() == [[-1, -1]]
    assert made["highest"]["x"].tolist() == [[5, 5]]
    assert all(((feeds["x"] >= -1) & (feeds["x"] <= 5)).all() for feeds in made.values())
