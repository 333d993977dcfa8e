"""Weights of which two of each four are zero."""

import numpy as np


def two_of_four(weights: np.ndarray, seed: int = 0) -> np.ndarray:
    """Of each four neighbouring inputs (axis 1) of a tap two become zero, here and there more."""
    random, by_tap = np.random.default_rng(seed), np.moveaxis(weights, 1, -1)
    fours = by_tap.reshape(*by_tap.shape[:-1], -1, 4).copy()
    np.put_along_axis(fours, random.random(fours.shape).argsort(-1)[..., :2], 0, -1)
    fours[random.random(fours.shape) < 0.1] = 0
    return np.ascontiguousarray(np.moveaxis(fours.reshape(by_tap.shape), -1, 1))
