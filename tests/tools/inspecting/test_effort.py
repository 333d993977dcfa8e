"""Of a model beyond memory, what a compile needs does not grow with all of its weights in float."""

from dataclasses import replace

import onnx_ir as ir
import pytest
from graphs import noise, parse

from ptqc.formats import Integer
from ptqc.ir.layers import Weight, find_layers, find_weights
from ptqc.passes.quantize.moment_stream import SMALL_BLOCK_BYTES
from ptqc.tools.inspecting.facts import FILED, PROGRAM, effort

FORMS = [Integer(4)]


@pytest.fixture
def weights() -> list[Weight]:
    model: ir.Model = parse("g (float[N, 64] x) => (float[N, 32] y) { y = MatMul(x, w) }", w=noise(64, 32))
    return find_weights(model, find_layers(model))


def test_small_models_are_held_several_times(weights: list[Weight]) -> None:
    one, two = (effort(many, FORMS, 10, 8).memory for many in (weights, weights * 2))
    assert two - one == pytest.approx(24 * 64 * 32)


def test_large_models_need_what_the_most_demanding_phase_does(weights: list[Weight]) -> None:
    result = effort(weights, FORMS, 10, 8, in_files=True).memory
    assert PROGRAM + SMALL_BLOCK_BYTES < result < PROGRAM + 1.1 * SMALL_BLOCK_BYTES
    many = [replace(weights[0], shape=(64 * 500, 32 * 400))]
    assert effort(many, FORMS, 10, 8, in_files=True).memory == PROGRAM + FILED * 64 * 32 * 200_000
    assert effort(many, FORMS, 10, 8).memory > 3 * effort(many, FORMS, 10, 8, in_files=True).memory
