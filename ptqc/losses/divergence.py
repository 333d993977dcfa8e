"""Kullback-Leibler divergences, in nats."""

import numpy as np

SMALLEST_PROBABILITY = 1e-12
# Sigmoids in float32 come no closer to 1.
SMALLEST_SCORE = 1e-7


def log_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    """Logarithm of the softmax of any numbers, in float64."""
    x = x.astype(np.float64)
    x = x - x.max(axis, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(axis, keepdims=True)))


def log_probabilities(p: np.ndarray, axis: int) -> np.ndarray:
    """Logarithm of probabilities, which are made to sum to one."""
    return log_softmax(np.log(np.maximum(p.astype(np.float64), SMALLEST_PROBABILITY)), axis)


def divergence(log_p: np.ndarray, log_q: np.ndarray, axis: int) -> float:
    """Σ p log(p/q) over the axis, mean over the others."""
    return float((np.exp(log_p) * (log_p - log_q)).sum(axis).mean())


def binary_divergence(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """p log(p/q) + (1 − p) log((1 − p)/(1 − q)) of each probability."""
    p, q = (np.clip(x.astype(np.float64), SMALLEST_SCORE, 1 - SMALLEST_SCORE) for x in (p, q))
    return np.asarray(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)))
