"""Channels are ordered for pruning: the network stays the same function, and less is lost than in any regrouping."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from compiling import Measured, compiled, measured_model, proto, residual, samples, weight
from graphs import noise

import ptqc
from ptqc.errors import PassError
from ptqc.execution.onnxruntime import Runner
from ptqc.ir.layers import find_layers, find_weights
from ptqc.ir.nodes import initial
from ptqc.options import CompileOptions
from ptqc.passes.equalize import order_for_pruning
from ptqc.passes.equalize.order_for_pruning import FOUR, best_order, lost_energy, ordered_for_pruning
from ptqc.utils.progress import SILENT

PRUNED = CompileOptions(sparsity="2:4")
# The table that gives the words gives their scores, too.
TIED = """g (int64[N,T] i) => (float[N,T,60] y) {{
    e = Gather(t, i)
    a = MatMul(e, w)
    b = Tanh(a)
    c = MatMul(b, v)
    d = {read}
    h = Transpose<perm = [1, 0]>(t)
    y = MatMul(d, h)
}}"""


@pytest.mark.parametrize("seed", range(5))
def test_eight_channels_get_the_best_of_all_orders(seed: int) -> None:
    energy = np.random.default_rng(seed).gamma(0.5, size=(6, 2 * FOUR))
    every = (
        [0, *first, *(channel for channel in range(1, 2 * FOUR) if channel not in first)]
        for first in combinations(range(1, 2 * FOUR), FOUR - 1)
    )
    best = min(lost_energy(energy[:, order]) for order in every)
    order = best_order(energy, np.random.default_rng(0))
    assert sorted(order) == list(range(2 * FOUR))
    assert lost_energy(energy[:, order]) == pytest.approx(best)


def test_channels_that_are_strong_together_are_set_apart() -> None:
    """Of 16 channels the first eight carry everything: as they are, half of it is lost; two to a four, nothing."""
    energy = np.where(np.arange(16) < 8, 1.0, 0.0) * np.ones((3, 1))
    assert lost_energy(energy) == 12
    assert lost_energy(energy[:, best_order(energy, np.random.default_rng(0))]) == 0


def test_the_network_computes_the_same_and_loses_less(measured: Measured) -> None:
    prepared = measured.prepared
    ordered = ordered_for_pruning(prepared, PRUNED, SILENT)
    assert ordered.model is not prepared.model
    assert "pruning to 2:4 takes" in ordered.notes[-1].message
    for feeds in prepared.samples[:4]:
        (before,), (after,) = (Runner(model).run(feeds).values() for model in (prepared.model, ordered.model))
        assert np.allclose(before, after, atol=1e-5)
    again = ordered_for_pruning(prepared, PRUNED, SILENT)
    assert again.equalized == ordered.equalized != prepared.equalized


def test_nothing_is_ordered_unless_weights_are_pruned(measured: Measured) -> None:
    prepared = measured.prepared
    assert ordered_for_pruning(prepared, CompileOptions(), SILENT) is prepared


def test_channels_of_inputs_and_outputs_stay(tmp_path: Path) -> None:
    model = proto("g (float[N,8] x) => (float[N,8] y) { y = Gemm(x, w) }", w=weight(8, 8))
    artifact = compiled(model, samples(8), tmp_path, sparsity="2:4", bits=(4,))
    assert [note for note in artifact.manifest["notes"] if note["step"] == "order-for-pruning"] == []


@pytest.mark.parametrize(
    ("read", "is_moved"), [("Identity(c)", False), pytest.param("Add(c, e)", True, marks=pytest.mark.slow)]
)
def test_a_table_and_the_product_with_it_stay_one(read: str, is_moved: bool, tmp_path: Path) -> None:
    """Channels of the table keep their order unless the product reads the same ones; the others are ordered."""
    matrices = {"w": noise(32, 32, seed=1, scale=0.2), "v": noise(32, 32, seed=2, scale=0.2)}
    model = proto(TIED.format(read=read), t=noise(60, 32, scale=0.5), **matrices)
    rng = np.random.default_rng(0)
    words = [{"i": rng.integers(0, 60, (1, 9))} for _ in range(32)]
    prepared = measured_model(model, words, tmp_path).prepared
    ordered = ordered_for_pruning(prepared, PRUNED, SILENT)
    assert "pruning to 2:4 takes" in ordered.notes[-1].message
    tables = [weight.table for weight in find_weights(ordered.model, find_layers(ordered.model))]
    assert tables.count("t") == 1
    assert not np.array_equal(initial(ordered.model, "v"), initial(prepared.model, "v"))
    assert np.array_equal(initial(ordered.model, "t"), initial(prepared.model, "t")) != is_moved


def test_an_order_that_float32_does_not_bear_is_undone(measured: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(*_given: object) -> None:
        raise PassError("reorder-channels changed output 'y'")

    monkeypatch.setattr(order_for_pruning, "run_rewrites", changed)
    prepared = measured.prepared
    ordered = ordered_for_pruning(prepared, PRUNED, SILENT)
    assert ordered.model is prepared.model
    assert (ordered.notes[-1].message, ordered.notes[-1].level) == (
        "undone: reorder-channels changed output 'y'",
        "skipped",
    )


@pytest.mark.slow
def test_a_compile_tells_of_it(tmp_path: Path) -> None:
    artifact = compiled(residual(), samples(3, 8, 8), tmp_path, sparsity="2:4", bits=(4,))
    assert [note["step"] for note in artifact.manifest["notes"]].count("order-for-pruning") == 1
    ptqc.verify(artifact.folder)
