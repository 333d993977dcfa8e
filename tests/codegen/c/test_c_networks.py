"""Random networks in C, here and on emulated boards: integers are those of ONNX Runtime, or a node is refused."""

from pathlib import Path

import pytest
from in_c import HAS_COMPILER, case
from lowering import quantized
from random_formats import RandomNetwork

from ptqc.errors import NoKernel

pytestmark = HAS_COMPILER
PART, FEW = 25, 1


def check(seeds: range, folder: Path) -> None:
    """Compare networks; at most a fifth of them may have a node without a kernel."""
    integers = refused = 0
    for seed in seeds:
        network = RandomNetwork.drawn(seed, mixed=0.2)
        model = quantized(network.model, network.feeds, forms=network.forms, keep_float=network.keeps_float)
        try:
            built = case(model, network.feeds)
        except NoKernel:
            refused += 1
            continue
        comparison = built.compare(folder / str(seed))
        assert comparison.different == {}
        built.run_on_boards(folder / str(seed))
        integers += comparison.integers
    assert refused <= len(seeds) / 5
    assert integers > 1000 * (len(seeds) - refused)


def test_random_networks(tmp_path: Path) -> None:
    check(range(FEW), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(9))
def test_many_random_networks(part: int, tmp_path: Path) -> None:
    check(range(part * PART, (part + 1) * PART), tmp_path)
