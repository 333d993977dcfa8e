"""The bit-by-bit simulation counts what a loop over Python's integers counts, and where the model of energy holds."""

from itertools import pairwise

import additions
import numpy as np
import onnxruntime as ort
import pytest
from compiling import proto, samples, weight

from ptqc.formats import Affine, QuantParams


def toggles(values: list[int]) -> int:
    return sum((a ^ b).bit_count() for a, b in pairwise(values))


def test_bits_that_change_are_counted() -> None:
    random = np.random.default_rng(0)
    a, b = random.integers(0, 16, (2, 300), np.int64)
    rows: list[list[int]] = [[], [], [], []]
    sums, held = [], 0
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        partial = 0
        for place in range(4):
            partial += (y << place) if x >> place & 1 else 0
            rows[place].append(partial >> place)
        held += x * y
        sums.append(held)
    products = (a * b).tolist()
    every = [a.tolist(), b.tolist(), *rows, products, sums, sums]
    assert additions.multiplied(a, b, 4) == pytest.approx(sum(toggles(values) for values in every) / 299)

    counts, once, held = random.poisson(2, 300), [], 0
    for x, count in zip(b.tolist(), counts.tolist(), strict=True):
        for _ in range(count):
            held += x
            once.append(held)
    expected = toggles(b.tolist()) / 299 + 2 * toggles(once) / (len(once) - 1) * len(once) / 300
    assert additions.added(b, counts) == pytest.approx(expected)


def test_the_model_holds_for_multipliers_of_many_bits_and_leaves_out_carries() -> None:
    for row in additions.simulated():
        bits, ratio = row["width"], row["ratio"]
        assert abs(ratio - 1) < 0.05 if bits >= 6 else 0.75 < ratio < 0.95
        carried = row["model of 2 additions"] + 2 * (row["model of 2 additions"] / bits - 0.5)
        assert abs(row["simulated additions"] / carried - 1) < (0.05 if bits >= 3 else 0.15)


def test_a_network_reads_rounded_numbers() -> None:
    model = proto(
        "g (float[N,6] x) => (float[N,4] y) { h = Gemm(x, w) r = Relu(h) y = Gemm(r, v) }",
        w=weight(6, 5),
        v=weight(5, 4),
    )
    params = {"x": QuantParams(Affine(3), 0.5, 3), "r": QuantParams(Affine(2), 0.4, 0)}
    other, x = weight(6, 5, seed=1), samples(6)
    made = additions.rounding(model, params, {"w": other})
    (result,) = ort.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    hidden = params["r"].rounded(np.maximum(params["x"].rounded(x) @ other, 0))
    np.testing.assert_allclose(result, hidden @ weight(5, 4), atol=1e-5)
