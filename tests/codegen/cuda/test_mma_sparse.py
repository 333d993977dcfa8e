"""Layers on sparse tensor cores give the integers of a sum tap by tap, and are taken where that is predicted to pay."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cuda target needs Apache TVM")

import kernel_processes
from test_cuda_target import needs_nvcc
from test_sparse_codes import codes_of

from ptqc.codegen.cuda import costs
from ptqc.codegen.cuda.backend import CUDA
from ptqc.codegen.kernels.backend import LayerSpec
from ptqc.codegen.kernels.epilogue import Requantization
from ptqc.codegen.kernels.writing import KernelSource
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import Window

LARGE, SMALL = Window(512, (32, 32)), Window(16, (3, 3))


def kernel_of(window: Window, weights: np.ndarray) -> KernelSource:
    """The kernel of a layer, as the target chooses it."""
    outputs = len(weights)
    x, y = Layout((window.channels, *window.size), "uint8"), Layout((outputs, *window.output), "uint8")
    numbers = Requantization(np.zeros(outputs, np.int32), np.ones(outputs, np.float32), 7)
    made = CUDA.layer(LayerSpec(x, y, window, weights, numbers))
    assert made is not None
    return made


def test_large_layers_with_two_of_four_are_predicted_to_pay() -> None:
    weights = codes_of((512, 512, 1, 1))
    sparse, dense = kernel_of(LARGE, weights), kernel_of(LARGE, np.where(weights == 0, np.int8(1), weights))
    assert (sparse.family, dense.family) == ("sparse_mma", "dense_mma")
    assert np.prod([sparse.predicted[chip] / dense.predicted[chip] for chip in dense.predicted]) < 0.9


def test_dense_products_that_are_predicted_to_take_no_longer_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "typical", lambda *_: 1.0)
    assert kernel_of(SMALL, codes_of((16, 16, 1, 1))).family == "dense_mma"


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["few", "all"])
def test_every_cut_and_packing_gives_the_same_integers(kind: str, tmp_path: Path) -> None:
    result = kernel_processes.run("sparse_cases", kind, tmp_path)
    assert result["wrong"] == {}
    assert len(result["off"]) > 1
    assert result["spilled"] == 0
    products = {name: count for name, count in result["tensor_core_instructions"].items() if "sparse_mma" in name}
    assert len(products) == 2 * len(result["off"])
    assert all(products.values())


@needs_nvcc
@pytest.mark.slow
def test_planted_faults_are_found_in_every_order_of_threads(tmp_path: Path) -> None:
    """Metadata, selector, order of kept codes and of inputs, signs, copies waited for, rounding.

    Barriers and zeros behind the last step are those of dense kernels.
    """
    assert kernel_processes.unnoticed("sparse_cases", 15, tmp_path) == {}
