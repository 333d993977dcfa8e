"""Layers on tensor cores, however they are cut and their weights packed, give the integers of a sum tap by tap."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cuda target needs Apache TVM")

import kernel_processes
from test_cuda_target import needs_nvcc

from ptqc.codegen.cuda import mma
from ptqc.codegen.cuda.coded_layer import CodedLayer
from ptqc.codegen.cuda.variants import predicted_best
from ptqc.codegen.kernels.epilogue import Requantization
from ptqc.codegen.program.constants import Arranged, InOrder, Stored
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import Window


def constant_of(weights: np.ndarray) -> Stored:
    """A layer's weights as its kernel takes them, as the target has chosen."""
    window = Window(weights.shape[1], (8, 8), (weights.shape[2], weights.shape[3]))
    x, y = Layout((weights.shape[1], 8, 8), "uint8"), Layout((len(weights), *window.output), "uint8")
    numbers = Requantization(np.zeros(len(weights), np.int32), np.ones(len(weights), np.float32), 7)
    return predicted_best(mma.variants(CodedLayer(x, y, window, weights, numbers))).constants[0]


def pairs(shape: tuple[int, ...]) -> np.ndarray:
    """int8 codes in which 50 pairs occur."""
    random = np.random.default_rng(0)
    chosen = random.choice(random.integers(0, 2**16, 50).astype(np.uint16), np.prod(shape) // 2)
    return chosen.view(np.int8).reshape(shape)


def test_weights_take_as_few_bits_as_there_is_a_way_for() -> None:
    point, window = (64, 64, 1, 1), (64, 64, 3, 3)
    stored = constant_of(pairs(point))
    assert isinstance(stored, InOrder)
    assert stored.data.nbytes * 8 == 64 * 64 * 3
    stored = constant_of(np.resize(np.arange(-16, 16), window).astype(np.int8))
    assert isinstance(stored, InOrder)
    assert stored.data.nbytes * 8 == 64 * 64 * 9 * 5
    assert isinstance(constant_of(pairs(window)), Arranged)  # become bytes when they are loaded


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["few", "all"])
def test_every_cut_and_packing_gives_the_same_integers(kind: str, tmp_path: Path) -> None:
    result = kernel_processes.run("dense_cases", kind, tmp_path)
    assert result["wrong"] == {}
    assert len(result["off"]) > 2
    assert result["spilled"] == 0


@needs_nvcc
@pytest.mark.slow
def test_instructions_that_take_parts_of_a_tile_give_the_same_integers(tmp_path: Path) -> None:
    result = kernel_processes.run("dense_cases", "parts", tmp_path)
    assert (result["wrong"], len(result["off"])) == ({}, 2)


@needs_nvcc
@pytest.mark.slow
def test_planted_faults_are_found_in_every_order_of_threads(tmp_path: Path) -> None:
    """Barriers, copies waited for, packing, signs, sums of shares, rounding, saturation."""
    assert kernel_processes.unnoticed("dense_cases", 27, tmp_path) == {}
