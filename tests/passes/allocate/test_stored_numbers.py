"""Reconstructed numbers in the store: found again for the same plan alone, and the file has the same bytes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiling import Measured, digests, measure_residual, quick, store_of

import ptqc
from ptqc.artifact.folder import Artifact
from ptqc.formats import Integer
from ptqc.ir.quantized_weight import QuantizedParameters
from ptqc.passes.allocate import fit as fitting
from ptqc.passes.allocate.fit import StoredParameters, fit, reconstruct
from ptqc.passes.quantize.phases import AnalyzedPlan
from ptqc.utils.deadline import Deadline
from ptqc.utils.store import Store


def no_more(*_given: object, **_more: object) -> None:
    raise AssertionError("reconstructed again")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    return measure_residual(tmp_path_factory.mktemp("residual"), bits=(3, 4, 8))


def test_numbers_come_back_as_they_were(measured: Measured, tmp_path: Path) -> None:
    stored = StoredParameters(Store(tmp_path / "numbers"), "one")
    fitted = fit(measured.context, measured.options, 9_000, stored=stored)
    result = stored.find(fitted.plan, range(2))
    assert result is not None
    draws, _ = reconstruct(measured.context, measured.options, fitted.plan, None)
    for again, made in zip(result, draws, strict=True):
        assert again.losses == made.losses
        assert again.biases.keys() == made.biases.keys()
        assert again.weights.keys() == made.weights.keys()
        for name, bias in made.biases.items():
            np.testing.assert_array_equal(again.biases[name], bias, strict=bias is not None)
        for name, solution in made.weights.items():
            known = again.weights[name]
            assert (known.form, known.axis) == (solution.form, solution.axis)
            np.testing.assert_array_equal(known.codes, solution.codes, strict=True)
            np.testing.assert_array_equal(known.scale, solution.scale, strict=True)


def test_another_plan_run_or_number_of_draws_is_not_found(measured: Measured, tmp_path: Path) -> None:
    stored = StoredParameters(Store(tmp_path / "numbers"), "one")
    plan = fit(measured.context, measured.options, None, stored=stored).plan
    assert stored.find(plan, range(2)) is not None
    assert stored.find(plan, range(6)) is None
    assert replace(stored, measured="two").find(plan, range(2)) is None
    name = next(iter(plan.formats))
    assert stored.find(plan.with_formats({**plan.formats, name: Integer(2)}), range(2)) is None


def test_the_same_budget_again_reconstructs_nothing(
    small: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "reconstruct_all", no_more)
    with quick():
        again = ptqc.resolve(small.folder, output=tmp_path / "out", budget="25%", cache=store_of(small))
        with pytest.raises(AssertionError, match="reconstructed again"):
            ptqc.resolve(small.folder, output=tmp_path / "other", budget="20%", cache=store_of(small))
    assert digests(again.folder) == digests(small.folder)


def test_a_resolve_reconstructs_with_the_best_draw_alone(
    small: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best, asked = small.manifest["allocation"]["draw"], []
    reconstruct_all = fitting.reconstruct_all

    def noted(planned: AnalyzedPlan, draws: Sequence[int], *rest: Any, **more: Any) -> list[QuantizedParameters]:
        asked.append(list(draws))
        return reconstruct_all(planned, draws, *rest, **more)

    monkeypatch.setattr(fitting, "reconstruct_all", noted)
    with quick():
        once = ptqc.resolve(small.folder, output=tmp_path / "once", budget="22%", cache=store_of(small))
        assert {tuple(draws) for draws in asked} == {(best,)}
        assert once.manifest["allocation"]["draw"] == best
        asked.clear()
        ptqc.resolve(small.folder, output=tmp_path / "all", budget="21%", cache=store_of(small), pipeline="light")
        assert {tuple(draws) for draws in asked} == {(0, 1)}


def test_what_a_time_limit_may_have_shortened_is_not_kept(measured: Measured, tmp_path: Path) -> None:
    stored = StoredParameters(Store(tmp_path / "numbers"), "one")
    hurried = replace(measured.context, deadline=Deadline.after(1000, 0))
    plan = fit(hurried, measured.options, None, stored=stored).plan
    assert stored.find(plan, range(2)) is None


def test_a_damaged_entry_is_made_anew(measured: Measured, tmp_path: Path) -> None:
    stored = StoredParameters(Store(tmp_path / "numbers"), "one")
    made = fit(measured.context, measured.options, None, stored=stored)
    (entry,) = (tmp_path / "numbers").glob("*/arrays.safetensors")
    damaged = bytearray(entry.read_bytes())
    damaged[-1] ^= 1
    entry.unlink()
    entry.write_bytes(damaged)
    again = fit(measured.context, measured.options, None, stored=stored)
    assert again.exported.data == made.exported.data
    assert stored.find(made.plan, range(2)) is not None
