"""Predicted times keep to what cannot be otherwise, and tiles follow what there is to do."""

from math import prod

import pytest

pytest.importorskip("tvm.tirx", reason="the cuda target needs Apache TVM")

from ptqc.codegen.cuda import costs
from ptqc.codegen.cuda.gpu_specs import CHIPS
from ptqc.codegen.cuda.packed_weights import Coding
from ptqc.codegen.program.program import Window

BYTES, FOUR = Coding(8), Coding(4)
LAYERS = {
    "one row": (Window(2048, (1, 1)), 1000),
    "few channels": (Window(16, (34, 34), (3, 3)), 16),
    "a window": (Window(256, (16, 16), (3, 3)), 256),
    "many rows": (Window(1024, (1, 1024)), 1024),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("samples", [1, 64])
def test_nothing_is_faster_than_memory_and_tensor_cores(layer: str, samples: int) -> None:
    window, outputs = LAYERS[layer]
    tiles = costs.ranked(window, outputs, FOUR)[0]
    depth = prod(window.kernel) * window.channels
    products = samples * prod(window.output) * depth * outputs
    for name, microseconds in costs.predicted(tiles, FOUR, samples).items():
        chip = CHIPS[name]
        assert microseconds * 1e3 >= products / (chip.products * chip.processors * chip.clock)
        assert microseconds * 1e3 >= depth * outputs / 2 / chip.bandwidth
        assert microseconds >= 3


@pytest.mark.parametrize("layer", LAYERS)
def test_more_samples_take_longer_and_fewer_bits_no_longer(layer: str) -> None:
    window, outputs = LAYERS[layer]
    times = [list(costs.predicted(costs.ranked(window, outputs, BYTES)[0], BYTES, n).values()) for n in (1, 64, 4096)]
    assert all(one <= many < most for one, many, most in zip(*times, strict=True))
    packed = costs.predicted(costs.ranked(*LAYERS["one row"], FOUR)[0], FOUR)
    whole = costs.predicted(costs.ranked(*LAYERS["one row"], BYTES)[0], BYTES)
    assert packed["sm_89"] < whole["sm_89"]  # whose memory is the slowest


def test_tiles_are_as_large_as_there_is_to_do() -> None:
    small, large = (costs.ranked(*LAYERS[name], BYTES)[0].cut for name in ("one row", "many rows"))
    assert small.rows * small.columns <= 1024
    assert large.rows * large.columns >= 8192
    assert costs.ranked(*LAYERS["few channels"], BYTES)[0].cut.columns == 32


@pytest.mark.parametrize("layer", LAYERS)
def test_sparse_products_take_half_the_multiplications_and_fewer_bytes(layer: str) -> None:
    window, outputs = LAYERS[layer]
    dense, sparse = costs.ranked(window, outputs, BYTES)[0], costs.ranked(window, outputs, BYTES, is_sparse=True)[0]
    assert sparse.cut.shares == 1
    assert 0.45 * costs.typical(dense, BYTES) < costs.typical(sparse, BYTES) < costs.typical(dense, BYTES)
    assert sparse.weight_bytes / sparse.cut.columns == 5 / 8 * dense.weight_bytes / dense.cut.columns


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("bits", range(1, 9))
def test_all_candidates_can_be_launched(bits: int, is_sparse: bool) -> None:
    window, outputs = LAYERS["a window"]
    result = list(costs.candidates(window, outputs, bits, 512, is_sparse=is_sparse))
    assert len(result) > 50
    for tiles in result:
        assert tiles.shared_bytes + 512 <= 48 * 1024
        assert 64 <= tiles.threads <= 512
        assert tiles.cut.rows % tiles.warp_rows == 0
