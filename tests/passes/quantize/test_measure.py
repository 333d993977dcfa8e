"""Measuring: once per model, data and options; afterwards the store gives the same context back."""

import io
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiling import Measured, compiled, measure_residual, proto, quick, samples, weight
from mostly_slow import mostly_slow

from ptqc.errors import UsageError
from ptqc.formats import Format, Integer, VectorCodebook
from ptqc.ir import external
from ptqc.ir.operators import OPERATORS, registry
from ptqc.notes import is_cut_short
from ptqc.options import CompileOptions
from ptqc.passes.analyze import Run, measure
from ptqc.passes.canonicalize.rewrites import default_rewrites
from ptqc.passes.quantize import measure as stage
from ptqc.passes.quantize import measure_sensitivity, solve_weights
from ptqc.passes.quantize.calibrate import Calibrate
from ptqc.passes.quantize.measure import recall
from ptqc.passes.quantize.phases import Analysis
from ptqc.utils.deadline import Deadline
from ptqc.utils.progress import SILENT, Lines
from ptqc.utils.store import Store


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("residual")


@pytest.fixture(scope="module")
def measured(place: Path) -> Measured:
    return measure_residual(place)


@pytest.fixture(scope="module")
def entry(place: Path, measured: Measured) -> str:
    with quick():
        return measure(measured.prepared, measured.options, Store(place / "cache"), SILENT)[2]


def assert_same(one: Analysis, other: Analysis) -> None:
    assert one.ranges == other.ranges
    assert one.activations == other.activations
    assert one.site_losses == other.site_losses
    assert one.weight_losses == other.weight_losses
    assert one.errors == other.errors
    assert one.macs == other.macs
    assert one.loss_unit == other.loss_unit
    assert one.solutions.keys() == other.solutions.keys()
    for key, solution in one.solutions.items():
        assert np.array_equal(solution.codes, other.solutions[key].codes)
        assert np.array_equal(solution.scale, other.solutions[key].scale)


def test_every_weight_is_measured_in_every_format(measured: Measured) -> None:
    context = measured.context
    keys = {(weight.name, bits) for weight in context.weights for bits in (2, 4, 7)}
    assert {(name, form.bits) for name, form in context.solutions if form.family == "int"} == keys
    for each in context.weights:
        losses = [context.weight_losses[each.name, Integer(bits)] for bits in (2, 4, 7)]
        assert losses[0] > losses[1] > losses[2] > 0


def test_a_second_measurement_comes_from_the_store(
    place: Path, measured: Measured, entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_arguments: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(Calibrate, "apply", never)
    context, _, name = measure(measured.prepared, measured.options, Store(place / "cache"), SILENT)
    assert name == entry
    assert_same(context, measured.context)


def test_a_stopped_measurement_resumes_behind_the_last_solved_weight(
    tmp_path: Path, measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solve_weights, "TOGETHER", 1)
    put, tried, lines = Store.put, list[str](), io.StringIO()
    weights = [weight.name for weight in measured.context.weights]

    def stopping(store: Store, key: Mapping[str, Any], *rest: Any) -> str:
        tried.extend(key.get("weights", []))
        if tried == weights:  # the last one, for the first time
            raise KeyboardInterrupt
        return put(store, key, *rest)

    monkeypatch.setattr(Store, "put", stopping)
    with quick(), pytest.raises(KeyboardInterrupt):
        measure(measured.prepared, measured.options, Store(tmp_path), SILENT)
    with quick():
        context, _, name = measure(measured.prepared, measured.options, Store(tmp_path), Lines(lines))
    assert tried == [*weights, weights[-1]]
    assert f"{len(weights) - 1} of {len(weights)} weights were solved by an earlier compile" in lines.getvalue()
    assert_same(context, measured.context)
    assert_same(recall(Store(tmp_path), name, SILENT)[1], measured.context)


@pytest.mark.usefixtures("entry")
def test_options_that_solving_does_not_look_at_solve_nothing_again(
    place: Path, measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_arguments: object) -> None:
        raise AssertionError("solved again")

    monkeypatch.setattr(solve_weights, "_problem", never)
    with quick():
        assert measure(measured.prepared, replace(measured.options, loss="mse"), Store(place / "cache"), SILENT)


@pytest.mark.slow
def test_candidates_that_are_gone_are_solved_again(tmp_path: Path, measured: Measured) -> None:
    with quick():
        _, _, name = measure(measured.prepared, measured.options, Store(tmp_path), SILENT)
        for folder in tmp_path.iterdir():
            if folder.name != name:
                shutil.rmtree(folder)
        with pytest.raises(UsageError, match="not in the store"):
            recall(Store(tmp_path), name, SILENT)
        context, _, again = measure(measured.prepared, measured.options, Store(tmp_path), SILENT)
    assert again == name
    assert_same(context, measured.context)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"seed": 1}, marks=pytest.mark.slow),
        {"bits": (2, 4)},
        {"observer": "minmax"},
        {"loss": "mse"},
        {"activations": "float"},
    ],
)
def test_other_options_are_another_entry(place: Path, measured: Measured, entry: str, change: dict[str, Any]) -> None:
    options = replace(measured.options, **change)
    with quick():
        assert measure(measured.prepared, options, Store(place / "cache"), SILENT)[2] != entry


def test_other_data_are_another_entry(place: Path, measured: Measured, entry: str) -> None:
    samples = measured.prepared.samples
    fewer = replace(measured.prepared, samples=samples.select(range(len(samples) - 1)))
    with quick():
        assert measure(fewer, measured.options, Store(place / "cache"), SILENT)[2] != entry


def _without_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Format, "families", tuple(each for each in Format.families if each is not VectorCodebook))


def _without_the_last_rewrite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "default_rewrites", lambda: default_rewrites()[:-1])


def _without_integer_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    said = replace(OPERATORS["Add"], kernels=frozenset(), reference=None)
    monkeypatch.setitem(registry.OPERATORS, "Add", said)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "forget",
    mostly_slow([_without_vectors, _without_the_last_rewrite, _without_integer_adds], _without_the_last_rewrite),
)
def test_what_is_added_to_ptqc_is_measured_where_an_older_one_has_measured(
    forget: Callable[[pytest.MonkeyPatch], None],
    place: Path,
    measured: Measured,
    entry: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as older, quick():
        forget(older)
        before = measure(measured.prepared, measured.options, Store(place / "cache"), SILENT)[2]
    assert before != entry


def test_everything_is_recalled_by_name(place: Path, measured: Measured, entry: str) -> None:
    prepared, context, options, notes = recall(Store(place / "cache"), entry, SILENT)
    assert options == measured.options
    assert prepared.origin == measured.prepared.origin
    assert prepared.notes == measured.prepared.notes
    assert prepared.samples.batchable == measured.prepared.samples.batchable
    assert prepared.samples.digest == measured.prepared.samples.digest
    assert all(
        note.step in ("calibrate", "solve-weights", "measure-sensitivity", "choose-activations") for note in notes
    )
    assert_same(context, measured.context)


def test_the_recalled_measurements_fit_to_the_same_bytes(place: Path, measured: Measured, entry: str) -> None:
    prepared, context, options, _ = recall(Store(place / "cache"), entry, SILENT)
    again = Measured(prepared, context, options, measured.feeds)
    assert again.fit(10_000).exported.data == measured.fit(10_000).exported.data


def test_an_emptied_store_says_what_to_do(tmp_path: Path, entry: str) -> None:
    with pytest.raises(UsageError, match=r"not in the store .*Run `ptqc compile` .* --cache"):
        recall(Store(tmp_path / "empty"), entry, SILENT)


def test_defaults_are_those_of_the_options() -> None:
    assert CompileOptions.of({}).bits == (2, 3, 4, 5, 6, 7, 8)


def test_what_was_cut_short_is_not_taken_for_the_whole(measured: Measured, tmp_path: Path) -> None:
    store = Store(tmp_path)
    with quick():
        short, notes, entry = measure(measured.prepared, measured.options, store, SILENT, Run(Deadline(0.0)))
    assert is_cut_short(notes)
    assert short.solutions.keys() <= measured.context.solutions.keys()
    with quick():
        whole, notes, other = measure(measured.prepared, measured.options, store, SILENT)
    assert not is_cut_short(notes)
    assert other != entry
    assert_same(whole, measured.context)


def test_what_was_cut_short_can_be_recalled(measured: Measured, tmp_path: Path) -> None:
    store = Store(tmp_path)
    short, _, entry = measure(measured.prepared, measured.options, store, SILENT, Run(Deadline(0.0)))
    assert_same(recall(store, entry, SILENT)[1], short)


@pytest.mark.parametrize(
    ("operators", "said"),
    [("onnxruntime", ["the losses of 1 of 2 weights"]), pytest.param("standard", [], marks=pytest.mark.slow)],
)
def test_what_an_operator_leaves_one_format_is_hardly_measured_beyond_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operators: str, said: list[str]
) -> None:
    monkeypatch.setattr(external, "IN_MEMORY_LIMIT", 4000)
    monkeypatch.setattr(measure_sensitivity, "SAMPLED_WEIGHTS", 1)
    model = proto(
        "g (float[N,64] x) => (float[N,80] y) { h = MatMul(x, w) r = Relu(h) y = MatMul(r, v) }",
        w=weight(64, 64),
        v=weight(64, 80, seed=1),
    )
    artifact = compiled(model, samples(64), tmp_path, budget="50%", bits=(4,), activations="float", operators=operators)
    notes = [note["message"] for note in artifact.manifest["notes"] if note["step"] == "measure-sensitivity"]
    assert [note[: len(said[0])] for note in notes] == said
