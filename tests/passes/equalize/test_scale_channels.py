"""Scaled channels compute the same function."""

import numpy as np
import pytest
import tiny_llama_model
from mostly_slow import mostly_slow
from random_channels import network

from ptqc.execution.shapes import observed_shapes
from ptqc.ir.channels import find_ties
from ptqc.ir.scale_rules import SCALES
from ptqc.passes.equalize.scale_channels import ScaleChannels
from ptqc.passes.runner import run_rewrites


@pytest.mark.parametrize("seed", mostly_slow(range(300), *range(6)))
def test_any_factors_compute_the_same(seed: int) -> None:
    model, feeds = network(seed)
    ties = find_ties(model, observed_shapes(model, feeds), SCALES)
    factors = np.exp(np.random.default_rng(seed).uniform(-3, 3, len(ties.classes)))
    run_rewrites(model, (ScaleChannels(ties, np.where(ties.fixed, 1.0, factors)),), [feeds])


def test_norms_values_and_gated_products_of_a_decoder_can_be_scaled() -> None:
    model, feeds = tiny_llama_model.without_cache()
    ties = find_ties(model, observed_shapes(model, feeds), SCALES)
    free = sorted(len(group) for group in ties.groups())
    assert free == [128] * 2 + [256] * 5 + [512] * 2  # values of two heads, behind five norms, in two gated products
