"""Products with codes and a scale for each block: against float64, and where each code lies."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cuda target needs Apache TVM")

import kernel_processes
from test_cuda_target import needs_nvcc

from ptqc.codegen.cuda.weight_only import WeightOnly, product
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import UnsupportedOp

# Of one kernel for one chip, outside of its loop.
FEW_SPILLS = 16


@needs_nvcc
@pytest.mark.parametrize("kind", ["few", pytest.param("all", marks=pytest.mark.slow)])
def test_results_are_those_of_float64(kind: str, tmp_path: Path) -> None:
    found = kernel_processes.run("weight_only_cases", kind, tmp_path)
    assert found["wrong"] == {}
    assert len(found["off"]) > 1
    assert found["spilled"] <= FEW_SPILLS


@needs_nvcc
@pytest.mark.slow
def test_planted_faults_are_found_in_every_order_of_threads(tmp_path: Path) -> None:
    """Zero points, packing, layouts, order of scales, sums of warps."""
    assert kernel_processes.unnoticed("weight_only_cases", 16, tmp_path) == {}


@pytest.mark.parametrize(("bits", "per_word"), [(4, 8), (8, 4)])
def test_a_lane_finds_its_codes_of_two_outputs_in_one_load(bits: int, per_word: int) -> None:
    kernel = WeightOnly(bits, 40, 384, 64, 8)
    codes = np.random.default_rng(0).integers(-(2 ** (bits - 1)), 2 ** (bits - 1), (40, 384)).astype(np.int8)
    words = kernel.pack(codes).astype(np.int64).reshape(3, 384 // kernel.unit, 32, 4)
    # Pairs of neighbours are 16 bits apart, where one mask leaves both; or bytes as they follow each other.
    places = [0, 16, 4, 20, 8, 24, 12, 28] if bits == 4 else [0, 8, 16, 24]
    found = np.zeros((48, 384), np.int64)
    for lane in range(32):
        group, place = divmod(lane, 4)
        for word in range(4):
            part, within = divmod(word, 2) if bits == 4 else (0, word)
            output, first = (within, 0) if bits == 4 else divmod(within, 2)
            for i in range(per_word):
                column = part * 32 + place * 8 + first * per_word + i
                code = (words[:, :, lane, word] >> places[i] & (2**bits - 1)) - 2 ** (bits - 1)
                found.reshape(3, 16, -1, kernel.unit)[:, group + 8 * output, :, column] = code
    np.testing.assert_array_equal(found[:40], codes)
    assert not found[40:].any()


def test_scales_of_sixteen_outputs_lie_side_by_side() -> None:
    scales = np.arange(40 * 6, dtype=np.float32).reshape(40, 6)
    packed = WeightOnly(4, 40, 384, 64, 8).pack_scales(scales).reshape(3, 6, 16)
    np.testing.assert_array_equal(packed[1, 4], scales[16:32, 4])
    np.testing.assert_array_equal(packed[2, 5], [*scales[32:, 5], *[0] * 8])


@pytest.mark.parametrize(
    ("bits", "inputs", "block", "told"),
    [
        (3, 384, 64, "3 bits with a scale for 64 inputs and 8 rows: there are kernels for 4 and 8 bits"),
        (4, 384, 96, "4 bits with a scale for 96 inputs"),
        (4, 96, 32, "96 inputs are not a multiple of 64"),
        (8, 192, 128, "192 inputs are not a multiple of 128"),
    ],
)
def test_other_sizes_are_declined(bits: int, inputs: int, block: int, told: str) -> None:
    x, y = Layout((inputs,), "float16", row_major=True), Layout((16,), "float32", row_major=True)
    with pytest.raises(UnsupportedOp, match=told):
        product(x, y, WeightOnly(bits, 16, inputs, block, 8), np.zeros((16, inputs), np.int8), np.ones((16, 1)))
