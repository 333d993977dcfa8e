"""Sorted channels: the same function, the same numbers, and no trace of it when it is undone."""

import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse
from mostly_slow import mostly_slow
from random_channels import network

from ptqc.execution.shapes import observed_shapes
from ptqc.ir.channel_rules import ORDERS
from ptqc.ir.channels import ChannelTies, find_ties
from ptqc.ir.nodes import initial
from ptqc.passes.base import Feeds, Probed
from ptqc.passes.equalize.reorder_channels import ReorderChannels, by_key
from ptqc.passes.runner import run_rewrites


def ties_of(model: ir.Model, feeds: Feeds) -> ChannelTies:
    return find_ties(model, observed_shapes(model, feeds), ORDERS)


def shuffled(ties: ChannelTies, seed: int) -> ReorderChannels:
    return ReorderChannels(ties, by_key(ties, np.random.default_rng(seed).permutation(len(ties.classes))))


@pytest.mark.parametrize("seed", mostly_slow(range(300), *range(8)))
def test_any_order_computes_the_same(seed: int) -> None:
    model, feeds = network(seed)
    step = shuffled(ties_of(model, feeds), seed)
    before, original = ir.to_proto(model).SerializeToString(), model.clone()
    run_rewrites(model, (step,), [feeds])  # compares the outputs with 1e-5 of the largest
    for name in model.graph.initializers:
        assert np.array_equal(np.sort(initial(model, name), None), np.sort(initial(original, name), None))
    step.undone().apply(Probed(model))
    assert ir.to_proto(model).SerializeToString() == before


def test_channels_are_sorted_by_key_largest_first() -> None:
    graph = "g (float[1, 2] x) => (float[1, 3] y) { h = MatMul(x, w)  r = Relu(h)  y = MatMul(r, v) }"
    model = parse(graph, w=noise(2, 4), v=noise(4, 3))
    feeds = {"x": noise(1, 2)}
    ties, before = ties_of(model, feeds), initial(model, "w")
    keys = np.zeros(len(ties.classes))
    keys[ties.tensors["h"].ravel()] = 1, 4, 2, 3
    run_rewrites(model, (ReorderChannels(ties, by_key(ties, keys)),), [feeds])
    assert np.array_equal(initial(model, "w"), before[:, [1, 3, 2, 0]])
