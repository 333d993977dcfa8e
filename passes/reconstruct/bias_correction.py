"""Bias correction: a layer's bias makes up for the mean error of its quantized weight.

Nagel et al. 2019, arXiv 1906.04721, section 4.2: with E[x] the mean of what the layer reads, b̂ = E[y] − Ŵ E[x].
"""

import numpy as np

from ptqc.ir.layers import Layer
from ptqc.ir.nodes import initial
from ptqc.passes.quantize.phases import CalibrationStats


def corrected_bias(matrix: np.ndarray, mean_x: np.ndarray, mean_y: np.ndarray) -> np.ndarray:
    """Give a quantized weight (groups, R, d) the mean output (groups, R) of the float one: the bias (groups · R,)."""
    return np.asarray((mean_y - mean_output(matrix, mean_x)).reshape(-1), np.float32)


def mean_output(matrix: np.ndarray, mean_x: np.ndarray) -> np.ndarray:
    """What a weight (groups, R, d) gives in the mean of its inputs (groups, d), without bias."""
    return np.asarray(np.einsum("gok,gk->go", matrix, mean_x))


def mean_shift(observed: CalibrationStats, layer: Layer, weight: np.ndarray) -> np.ndarray:
    """(W − Ŵ) E[x]: what exact correction adds to the bias; zeros for a layer that is not corrected."""
    if not layer.is_corrected:
        return np.zeros(layer.channels, np.float32)
    delta = layer.matrix(initial(observed.model, layer.weight) - weight)
    return np.asarray(mean_output(delta, observed.moments[layer.weight].mean).reshape(-1), np.float32)
