"""A model's answer to a sample as one vector."""

import numpy as np

from ptqc.calibration.inputs import InputRole
from ptqc.tools.evaluating.metric import Case


def vector(case: Case, sample: int = 0) -> np.ndarray:
    """The judged output in float64; of one vector for each token, the mean over those that are no padding."""
    answer = case.answers[sample].astype(np.float64)
    tokens, mask = case.fed(InputRole.TOKENS, sample), case.fed(InputRole.MASK, sample)
    if tokens is None or answer.ndim != 3 or answer.shape[1] != tokens.size:
        return answer.reshape(-1)
    counted = np.ones(tokens.size) if mask is None else mask.reshape(-1).astype(np.float64)
    return np.asarray(counted @ answer[0] / max(counted.sum(), 1.0))


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    """The cosine of the angle between two vectors; 0 where one of them is zero."""
    sizes = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / sizes if sizes else 0.0
