"""Uneven channels are evened out where held-back samples show that it pays; else the model is as it was."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from compiling import compiled, digests, proto
from graphs import noise
from mostly_slow import mostly_slow
from tiny_llama_model import tiny_llama

from ptqc.frontend import read_model
from ptqc.ir.channels import ChannelTies, Rule, Shapes
from ptqc.ir.nodes import initial
from ptqc.options import CompileOptions
from ptqc.passes.equalize import equalize_channels
from ptqc.passes.equalize.equalize_channels import FEWEST, Comparison, Offers, RoundedLosses, SampleLosses, equalized
from ptqc.passes.equalize.standardize import Standard
from ptqc.passes.quantize.prepare import HELD_BACK, CanonicalModel, gather, prepare
from ptqc.utils.deadline import NEVER
from ptqc.utils.progress import SILENT
from ptqc.utils.store import Store

# One of 32 channels between the products carries 40 times its values.
TWO = "g (float[N,8] x) => (float[N,6] y) { h = Gemm(x, w, b)  r = Relu(h)  y = Gemm(r, v) }"
COUNT = HELD_BACK * FEWEST


def two_layers(factor: float = 40.0) -> onnx.ModelProto:
    carried = np.ones(32, np.float32)
    carried[5] = factor
    return proto(TWO, w=noise(8, 32) * carried, b=noise(32) * carried, v=noise(32, 6, seed=2) / carried[:, None])


def prepared(model: onnx.ModelProto, data: object, folder: Path) -> CanonicalModel:
    folder.mkdir(exist_ok=True)
    onnx.save(model, folder / "model.onnx")
    source = read_model(folder / "model.onnx")
    return prepare(source, gather(source, data, folder / "samples", 1000, None, SILENT), SILENT)


Prepare = Callable[..., CanonicalModel]


@pytest.fixture
def ready(tmp_path: Path) -> Prepare:
    def of(model: onnx.ModelProto, count: int = COUNT) -> CanonicalModel:
        return prepared(model, {"x": noise(count, 8, seed=3)}, tmp_path)

    return of


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def run(value: CanonicalModel, store: Store, **options: object) -> CanonicalModel:
    return equalized(value, CompileOptions.of(options), store, NEVER, SILENT)


def test_a_channel_that_decides_the_range_is_scaled(ready: Prepare, store: Store) -> None:
    value = ready(two_layers())
    result = run(value, store)
    assert result.equalized != value.equalized == ""
    assert result.notes[-1].step == "scale-channels"
    losses = RoundedLosses(value.model, value.tuning, value.held_back, "auto")
    assert losses.of(result.model).activations.mean() < 0.3 * losses.of(value.model).activations.mean()


def test_even_channels_are_not_touched(ready: Prepare, store: Store) -> None:
    value = ready(two_layers(1.0))
    assert run(value, store) is value


def test_few_samples_accept_nothing(ready: Prepare, store: Store) -> None:
    value = ready(two_layers(), COUNT - HELD_BACK)
    assert run(value, store) is value


def test_activations_in_float_gain_nothing(ready: Prepare, store: Store) -> None:
    value = ready(two_layers())
    assert run(value, store, activations="float") is value


def test_what_does_not_pay_is_undone_with_a_note(ready: Prepare, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    value = ready(two_layers())
    before = ir.to_proto(value.model).SerializeToString()
    monkeypatch.setattr(equalize_channels, "smoothing", lambda reach, _: np.linspace(1, 64, len(reach))[::-1])
    result = run(value, store)
    assert ir.to_proto(result.model).SerializeToString() == before
    assert "undone" in result.notes[-1].message
    assert result.equalized == ""


def test_a_rotation_pays_where_weights_bear_it(ready: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large channel between two products, spread over all: activations gain, and 4-bit weights lose more."""
    weight, reader = noise(8, 32), noise(32, 6, seed=2, scale=0.03)
    weight[:, 5] *= 30
    value = ready(proto(TWO.replace("Relu", "Identity"), w=weight, b=noise(32), v=reader))
    losses = RoundedLosses(value.model, value.tuning, value.held_back, "auto")
    offers = Offers(value, losses, 0)
    offers.rotate()
    assert offers.prepared.model is value.model
    assert "undone" in offers.prepared.notes[-1].message
    zeros = np.zeros(len(value.held_back))
    rounded = RoundedLosses.of
    monkeypatch.setattr(RoundedLosses, "of", lambda self, x: replace(rounded(self, x), weights=zeros))
    offers = Offers(value, losses, 0)
    offers.rotate()
    assert offers.prepared.equalized
    assert offers.prepared.notes[-1].step == "rotate"
    assert losses.of(offers.prepared.model).activations.mean() < 0.3 * losses.of(value.model).activations.mean()


def constants(value: CanonicalModel) -> dict[str, bytes]:
    return {name: initial(value.model, name).tobytes() for name in value.model.graph.initializers}


@pytest.mark.parametrize("factor", [1.0, 40.0])
def test_what_was_accepted_or_refused_is_not_measured_again(
    factor: float, ready: Prepare, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = ready(two_layers(factor))
    first = run(value, store)
    monkeypatch.delattr(equalize_channels, "Offers")
    again = run(value, store)
    assert (again.equalized, again.notes, constants(again)) == (first.equalized, first.notes, constants(first))
    assert (constants(again) == constants(value)) == (factor == 1)


def test_ties_are_found_once_for_a_model(ready: Prepare, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, find = list[tuple[int, int]](), equalize_channels.find_ties

    def counted(model: ir.Model, shapes: Shapes, rules: Mapping[str, Rule]) -> ChannelTies:
        asked.append((id(model), id(rules)))
        return find(model, shapes, rules)

    monkeypatch.setattr(equalize_channels, "find_ties", counted)
    run(ready(two_layers()), store)
    assert len(asked) == len(set(asked)) == 4


def test_an_artifact_says_what_was_evened_out_and_so_does_a_second_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = two_layers(), {"x": noise(COUNT, 8, seed=3)}
    artifact = compiled(model, data, tmp_path)
    notes = [note["message"] for note in artifact.manifest["notes"] if note["step"] == "scale-channels"]
    assert any("8-bit activations lose" in message for message in notes)
    monkeypatch.delattr(equalize_channels, "Offers")
    assert digests(compiled(model, data, tmp_path, output=tmp_path / "again").folder) == digests(artifact.folder)


@pytest.mark.slow
def test_outliers_that_were_planted_into_a_decoder_are_recovered(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 bits lose at most 1.1 times what they lose of the same function without planted outliers."""
    monkeypatch.setattr(tiny_llama, "LAYERS", 1)
    monkeypatch.setattr(equalize_channels, "OBSERVED", 16)
    feeds = [tiny_llama.sample(16, cache=False, seed=seed) for seed in range(COUNT)]
    plain, planted = (
        prepared(tiny_llama.build(outliers, cache=False), feeds, tmp_path / str(outliers)) for outliers in (False, True)
    )
    losses = RoundedLosses(plain.model, plain.tuning[:16], plain.held_back, "auto")
    result = run(planted, store)
    assert result.equalized
    assert losses.of(result.model).activations.mean() <= 1.1 * losses.of(plain.model).activations.mean()


def compared(before: np.ndarray, after: np.ndarray, harm: np.ndarray) -> Comparison:
    zeros = np.zeros_like(harm)
    return Comparison(SampleLosses(before, zeros), SampleLosses(after, harm), "nat")


def test_only_what_is_better_by_more_than_chance_is_better() -> None:
    chance = np.tile([-1.0, 1.0], 8)
    zeros = np.zeros(16)
    assert compared(chance + 1, zeros, zeros).is_better
    assert not compared(chance + 0.3, zeros, zeros).is_better
    assert not compared(zeros, chance + 1, zeros).is_better


def test_what_coarse_weights_lose_by_is_not_better() -> None:
    chance, ones = np.tile([-1.0, 1.0], 8), np.ones(16)
    assert not compared(ones, 0 * ones, chance + 1).is_better
    assert compared(ones, 0 * ones, chance + 0.1).is_better


def test_a_table_and_its_product_stay_tied(tmp_path: Path, store: Store) -> None:
    """What comes of the rows alone could be scaled: the product would then no longer have the table's numbers."""
    graph = "g (int64[N,T] i) => (float[N,T,40] y) { e = Gather(t, i) a = MatMul(e, w) r = Relu(a) y = MatMul(r, h) }"
    carried = np.ones(32, np.float32)
    carried[5] = 40
    table = noise(40, 32) / carried
    model = proto(graph, t=table, w=noise(32, 32, seed=1) * carried, h=table.T.copy())
    texts = [{"i": np.random.default_rng(seed).integers(0, 40, (1, 6))} for seed in range(COUNT)]
    value = prepared(model, texts, tmp_path)
    result = run(value, store)
    assert result.model is value.model
    assert any("tied embedding" in note.message for note in result.notes)


UNITS = np.logspace(-3, 6, 8, dtype=np.float32)


def folded_scaler() -> tuple[onnx.ModelProto, np.ndarray]:
    """A network with a scaler in its first weight, and a table."""
    w, x = noise(8, 32) / UNITS[:, None], (noise(COUNT, 8, seed=3) + 3) * UNITS
    return proto(TWO, w=w, b=noise(32, seed=1) - 3 * UNITS @ w, v=noise(32, 6, seed=2)), x


@pytest.mark.parametrize("activations", mostly_slow(["auto", "float"], "auto"))
def test_a_table_whose_columns_differ_is_standardized_and_that_is_not_measured_again(
    activations: str, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = folded_scaler()
    value = prepared(model, {"x": x}, tmp_path)
    result = run(value, store, activations=activations)
    assert [node.op_type for node in result.model.graph][:2] == ["Sub", "Mul"]
    assert result.equalized
    assert [note.step for note in result.notes[len(value.notes) :]][:2] == ["standardize"] * 2
    losses = RoundedLosses(value.model, value.tuning, value.held_back, "auto")
    before, after = losses.of(value.model), losses.of(result.model)
    assert after.weights.mean() < 0.1 * before.weights.mean()
    assert after.activations.mean() < 0.1 * before.activations.mean()
    monkeypatch.delattr(equalize_channels, "Offers")
    again = run(value, store, activations=activations)
    assert (again.equalized, again.notes, constants(again)) == (result.equalized, result.notes, constants(result))
    assert len(again.model.graph) == len(result.model.graph)


def test_standardizing_that_does_not_pay_is_undone(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = folded_scaler()
    value = prepared(model, {"x": x}, tmp_path)
    worse = {"x": Standard(np.zeros(8), UNITS.astype(np.float64))}
    monkeypatch.setattr(equalize_channels, "uneven_inputs", lambda *_: worse)
    result = run(value, store, activations="float")
    assert result.model is value.model
    assert "undone" in result.notes[-1].message
    again = run(value, store, activations="float")
    assert (again.equalized, again.notes, constants(again)) == ("", result.notes, constants(value))


def test_weights_that_gain_are_enough_where_activations_lose_nothing() -> None:
    chance, ones = np.tile([-1.0, 1.0], 8), np.ones(16)
    before, gains = SampleLosses(ones, ones), SampleLosses(ones, 0 * ones)
    assert Comparison(before, gains, "nat").is_better_for_weights
    assert not Comparison(before, replace(gains, activations=ones + chance + 1), "nat").is_better_for_weights
    assert not Comparison(before, before, "nat").is_better_for_weights
