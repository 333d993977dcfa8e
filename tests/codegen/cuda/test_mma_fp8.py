"""Layers of FP8 give sums tap by tap, with the tensor cores of FP8 and with those of float16."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cuda target needs Apache TVM")

import kernel_processes
from test_cuda_target import needs_nvcc

from ptqc.codegen.cuda import mma_fp8


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["few", "all"])
def test_every_cut_gives_the_same_sums_on_all_chips(kind: str, tmp_path: Path) -> None:
    result = kernel_processes.run("float8_cases", kind, tmp_path)
    assert result["wrong"] == {}
    assert len(result["off"]) > 2
    assert result["spilled"] == 0
    counted = {name: count for name, count in result["tensor_core_instructions"].items() if "float8_mma" in name}
    kernels = {name.split()[1] for name in counted}
    assert len(counted) == 4 * len(kernels)
    for name in kernels:  # products of FP8 where a chip has some, else twice as many of float16
        count = counted[f"sm_89 {name}"]
        assert count > 0
        assert all(counted[f"{gpu} {name}"] == 2 * count for gpu in ("sm_80", "sm_86", "sm_90a"))


@needs_nvcc
@pytest.mark.slow
def test_planted_faults_are_found_in_every_order_of_threads(tmp_path: Path) -> None:
    """Order of inputs, weights and sums, formats, unpacking to float16, sums of shares, rounding."""
    assert kernel_processes.unnoticed("float8_cases", 22, tmp_path) == {}


def cut(values: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """Towards zero, to 13 digits behind the point of numbers with these exponents."""
    unit = np.ldexp(1.0, exponents - 13)
    return np.trunc(values / unit) * unit


def exponent(values: np.ndarray) -> np.ndarray:
    return np.where(values == 0, -200, np.frexp(values)[1] - 1)


def summed_on_a_chip(a: np.ndarray, b: np.ndarray, together: int) -> np.ndarray:
    """a (rows, depth) times b (depth, columns) as chips of compute capability 8.9 were measured to sum: 16 products at
    a time (arXiv 2511.10909); so many summed on the tensor core, then in float32."""
    total = np.zeros((len(a), b.shape[1]), np.float32)
    own = np.zeros(total.shape)
    for k in range(0, a.shape[1], 16):
        left, right = a[:, None, k : k + 16], b.T[None, :, k : k + 16]
        products = left * right
        exponents = np.maximum(exponent(left), -6) + np.maximum(exponent(right), -6)
        exponents = np.where(products == 0, -200, exponents)
        top = np.maximum(exponents.max(-1), exponent(own))
        result = cut(own, top) + cut(products, top[..., None]).sum(-1)
        own = cut(result, exponent(result))
        if (k + 16) % together == 0:
            total, own = total + own.astype(np.float32), np.zeros(own.shape)
    return total + own.astype(np.float32)


@pytest.mark.parametrize("depth", [32, 576, 4608])
def test_what_chips_cut_of_sums_stays_within_what_is_allowed(depth: int) -> None:
    """It would not, were all products of a deep layer summed on the tensor core."""
    random = np.random.default_rng(depth)
    a, b = (
        (random.standard_normal(shape) * 40).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
        for shape in ((24, depth), (depth, 24))
    )
    wanted = a @ b
    result, alone = (np.abs(summed_on_a_chip(a, b, n) - wanted).max() / np.abs(wanted).max() for n in (32, depth))
    assert 1e-5 < result < mma_fp8.SUMS.of_chip / 4
    assert depth < 4608 or alone > mma_fp8.SUMS.of_chip
