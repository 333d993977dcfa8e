"""Random networks in C, here and on emulated boards: integers are those of ONNX Runtime, or a node is refused."""

from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from drawing import draw
from in_c import HAS_COMPILER, case
from lowering import quantized
from random_formats import format_of, prune

from ptqc.errors import NoKernel
from ptqc.ir.layers import find_layers, find_weights
from ptqc.passes.canonicalize.rewrites import default_rewrites
from ptqc.passes.runner import run_rewrites

pytestmark = HAS_COMPILER
PART, FEW = 25, 4


def _is_float(random: np.random.Generator, share: float, _site: str) -> bool:
    return bool(random.random() < share)


def check(seeds: range, folder: Path) -> None:
    """Compare networks; at most a fifth of them may have a node without a kernel."""
    integers = refused = 0
    for seed in seeds:
        proto, feeds = draw(seed)
        random = np.random.default_rng(seed)
        model = ir.from_proto(proto)
        run_rewrites(model, default_rewrites(), feeds[:1])
        floating = random.random() if random.random() < 0.2 else 0.0
        forms = {w.name: format_of(w, random) for w in find_weights(model, find_layers(model))}
        for name in (name for name, form in forms.items() if form.keeps_zeros):
            prune(model.graph.initializers[name], random)
        made = quantized(model, feeds, forms=forms, keep_float=partial(_is_float, random, floating))
        try:
            built = case(made, feeds)
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
