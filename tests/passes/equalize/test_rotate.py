"""Rotated channels compute the same function, and no channel stands out any more."""

import numpy as np
import onnx_ir as ir
import pytest
import tiny_llama_model
from mostly_slow import mostly_slow
from random_channels import network

from ptqc.execution.onnxruntime import Runner
from ptqc.execution.shapes import observed_shapes
from ptqc.ir.channels import find_ties
from ptqc.ir.rotation_rules import ROTATIONS
from ptqc.ir.scale_rules import SCALES
from ptqc.passes.base import Feeds
from ptqc.passes.equalize.rotate import Rotate, rotatable, unit_gains
from ptqc.passes.equalize.scale_channels import ScaleChannels
from ptqc.passes.runner import run_rewrites


def fold_norms(model: ir.Model, feeds: Feeds) -> None:
    ties = find_ties(model, observed_shapes(model, feeds), SCALES)
    run_rewrites(model, (ScaleChannels(ties, unit_gains(model, ties)),), [feeds])


def rotate(model: ir.Model, feeds: Feeds, seed: int = 0) -> list[int]:
    """Rotate all that can be; sizes of the classes."""
    ties = find_ties(model, observed_shapes(model, feeds), ROTATIONS)
    run_rewrites(model, (Rotate(ties, rotatable(ties), seed),), [feeds])
    return sorted(int((ties.classes == number).sum()) for number in rotatable(ties))


@pytest.mark.parametrize("seed", mostly_slow(range(0, 300, 3), *range(0, 12, 3)))
def test_rotations_compute_the_same(seed: int) -> None:
    model, feeds = network(seed)
    fold_norms(model, feeds)
    sizes = rotate(model, feeds, seed)
    assert all(size in (8, 32) for size in sizes)  # heads, the stream


def test_stream_and_values_of_a_decoder_are_rotated() -> None:
    model, feeds = tiny_llama_model.without_cache(outliers=True)
    fold_norms(model, feeds)
    assert rotate(model, feeds) == [64, 64, 64, 64, 256]


def test_values_of_a_cache_stay() -> None:
    model, feeds = tiny_llama_model.with_cache()
    fold_norms(model, feeds)
    assert rotate(model, feeds) == [256]


def test_norms_with_gains_let_nothing_rotate_through() -> None:
    model, feeds = tiny_llama_model.without_cache()
    assert rotate(model, feeds) == [64, 64, 64, 64]


def kurtosis(values: np.ndarray) -> float:
    return float(np.mean(values**4) / np.mean(values**2) ** 2)


@pytest.mark.slow
def test_no_channel_stands_out_where_it_was_rotated() -> None:
    """Rows that the output projections read, (1, T, 256): two of 64 channels carry 25 times their values before."""
    model, feeds = tiny_llama_model.without_cache(outliers=True)
    names = [str(node.outputs[0].name) for node in model.graph if node.op_type == "Reshape"]
    rows = [name for name in names if observed_shapes(model, feeds)[name] == (1, 12, 256)]
    before = Runner(model, rows).run(feeds, rows)
    rotate(model, feeds)
    after = Runner(model, rows).run(feeds, rows)
    assert len(rows) == 2
    for name in rows:
        assert kurtosis(after[name]) < 0.25 * kurtosis(before[name])
