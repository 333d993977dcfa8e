from dataclasses import replace
from pathlib import Path

import pytest
from graphs import noise, parse
from reconstructing import measured, plan_of, table

from ptqc.execution.onnxruntime import Feeds
from ptqc.formats import Integer
from ptqc.losses.regression import Regression
from ptqc.notes import Level
from ptqc.passes.quantize.phases import TunablePlan
from ptqc.passes.reconstruct import features as tune

GRAPH = "g (float[N, 4] x) => (float[N, 6] y) { a = MatMul(x, w) h = {0}(a) y = Gemm(h, v, b) }"


def advanced(folder: Path, operator: str, samples: int = 256) -> tuple[bool, str, Level]:
    """Whether the numbers are the same object, and the note."""
    model = parse(GRAPH.replace("{0}", operator), w=noise(4, 8), v=noise(8, 6), b=noise(6))
    feeds: list[Feeds] = [{"x": noise(1, 4, seed=seed)} for seed in range(samples)]
    context = measured(model, folder, feeds, samples // 4)
    context = replace(context, kinds={"y": Regression()})
    plan = plan_of(context, Integer(3))
    before = table(context, plan, model)
    result = tune.TuneFeatures().apply(TunablePlan(context, plan, before))
    notes = result.notes
    return result.output is before, notes[0].message, notes[0].level


def test_gradient_steps_are_taken(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    threads = torch.get_num_threads()
    same, message, level = advanced(tmp_path, "Relu")
    assert not same
    assert level == Level.INFO
    assert "before" in message
    assert torch.get_num_threads() == threads


def test_a_model_that_torch_cannot_run_is_left_alone(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    same, message, level = advanced(tmp_path, "Bernoulli")
    assert same
    assert level == Level.SKIPPED
    assert "Bernoulli" in message


def test_without_torch_nothing_is_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "find_spec", lambda _name: None)
    same, message, level = advanced(tmp_path, "Relu")
    assert same
    assert level == Level.SKIPPED
    assert "not installed" in message
