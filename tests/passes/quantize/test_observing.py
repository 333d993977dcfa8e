"""Batches of calibration samples, one after the other."""

import weakref
from pathlib import Path

import numpy as np
from graphs import noise, parse

from ptqc.calibration.inputs import input_specs
from ptqc.calibration.samples import collect
from ptqc.execution.onnxruntime import Runner
from ptqc.passes.quantize.observing import batches

GRAPH = "g (float[N,12] x) => (float[N,6] y) { a = MatMul(x, u) y = Relu(a) }"


def test_values_of_a_batch_are_gone_when_the_next_one_is_there(tmp_path: Path) -> None:
    """Even those that a caller still has a name for: two batches would take twice the memory."""
    model = parse(GRAPH, u=noise(12, 6))
    inputs = input_specs(model)
    samples = collect([{"x": noise(1, 12, seed=i)} for i in range(3)], inputs, tmp_path, 3)
    several = batches(Runner(model, ["a"]), samples, ["a"], 2**30, inputs)
    _, _, first = next(several)
    array = weakref.ref(first["a"])
    start, feeds, second = next(several)
    assert array() is None
    assert start == 1
    np.testing.assert_allclose(second["a"], feeds["x"] @ noise(12, 6), rtol=1e-5)
