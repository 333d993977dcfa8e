"""Rotations that spread what single channels hold over all of them.

Q = diag(±1) · H / √n with H the Hadamard matrix of Sylvester: every channel of x Q is a sum of all channels of x with
factors of ±1/√n. Where n is no power of two, Q has blocks of the largest one that divides it.
A norm that subtracts the mean asks for a Q that keeps it: H · diag(±1) · H / n does, where the first sign is 1, since
H turns the vector of ones into a multiple of the first unit vector and back.
"""

import numpy as np


def rotation(size: int, seed: int = 0, keeps_mean: bool = False) -> np.ndarray:
    """An orthogonal matrix (size, size), in float64."""
    block = size & -size
    whole, rng = np.zeros((size, size)), np.random.default_rng(seed)
    for start in range(0, size, block):
        signs = rng.choice([-1.0, 1.0], block)
        matrix = _sylvester(block)
        if keeps_mean:
            signs[0] = 1.0
            turned = matrix @ (signs[:, None] * matrix) / block
        else:
            turned = signs[:, None] * matrix / np.sqrt(block)
        whole[start : start + block, start : start + block] = turned
    return whole


def _sylvester(size: int) -> np.ndarray:
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix
