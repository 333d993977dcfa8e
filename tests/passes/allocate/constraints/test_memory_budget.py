"""Budgets of memory: the file is measured to keep them, jointly with a size, or what is needed at least is told."""

import re
from pathlib import Path
from typing import Any

import pytest
from compiling import compiled, kept_budgets, proto, quick, samples, weight

import ptqc
from ptqc.artifact.folder import Artifact
from ptqc.errors import Infeasible, Missed, UsageError
from ptqc.passes.allocate.constraints import memory

# Two layers whose weights are most of the memory.
GRAPH = """g (float[N,16] x) => (float[N,64] y) {
    a = Gemm<transB=1>(x, w1, b1)
    ar = Relu(a)
    b = Gemm<transB=1>(ar, w2, b2)
    br = Relu(b)
    y = Gemm<transB=1>(br, w3, b3)
}"""
SHAPES = {"w1": (256, 16), "w2": (256, 256), "w3": (64, 256)}
WEIGHTS = sum(rows * columns for rows, columns in SHAPES.values())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("memory")


def compile_(place: Path, name: str, budget: Any, **options: Any) -> Artifact:
    """Float activations unless the memory asks for others."""
    weights = {key: weight(*shape, seed=i) for i, (key, shape) in enumerate(SHAPES.items())}
    biases = {f"b{key[1]}": weight(shape[0], seed=9) for key, shape in SHAPES.items()}
    settings: dict[str, Any] = {
        "activation_limit": 1e-12,
        "bits": (4,),
        "samples": 16,
        "cache": place / "cache",
    } | options
    data = samples(16, count=24)
    return compiled(proto(GRAPH, **weights, **biases), data, place, budget, output=place / name, **settings)


@pytest.fixture(scope="module")
def free(place: Path) -> Artifact:
    return compile_(place, "free", None)


@pytest.fixture(scope="module")
def held(place: Path) -> Artifact:
    return compile_(place, "held", ("150KBram", "20%"))


def test_without_a_budget_the_weights_are_float_in_memory(free: Artifact) -> None:
    memory = free.manifest["memory"]
    assert memory["limit_bytes"] is None
    assert memory["weights_bytes"] > 4 * WEIGHTS
    assert "memory" not in kept_budgets(free)
    assert all(kept_budgets(free).values())


def test_activations_are_chosen_for_the_memory(held: Artifact) -> None:
    memory = held.manifest["memory"]
    assert memory["needed_bytes"] <= memory["limit_bytes"] == 150_000
    assert memory["needed_bytes"] >= memory["weights_bytes"] > WEIGHTS
    assert held.manifest["verification"]["integer_nodes"] > 0
    assert (kept_budgets(held)["memory"], kept_budgets(held)["size"]) == (True, True)
    assert "% of the budget of 150,000 B of memory" in " ".join(held.summary().split())
    assert any("to reach 150,000 B of memory" in note["message"] for note in held.manifest["notes"])


def test_a_budget_that_is_kept_anyway_changes_nothing(place: Path, free: Artifact) -> None:
    result = compile_(place, "wide", "1MBram")
    assert result.plan == free.plan
    assert kept_budgets(result)["memory"] is True


def test_what_cannot_be_reached_says_what_is_needed(place: Path, held: Artifact) -> None:
    with pytest.raises(Infeasible) as refused:
        compile_(place, "none", "20KBram")
    least = int(re.search(r"built, and needs ([\d,]+)", str(refused.value))[1].replace(",", ""))  # type: ignore[index]
    assert "the budget of 20,000 B of memory cannot be met" in str(refused.value)
    assert "with --target c, the budget counts the RAM of the C source" in str(refused.value)
    assert WEIGHTS < least <= held.manifest["memory"]["needed_bytes"]
    assert not (place / "none").exists()
    # What is told can be had.
    assert kept_budgets(compile_(place, "least", f"{least}Bram"))["memory"] is True


def test_float_activations_leave_no_choice(place: Path) -> None:
    with pytest.raises(Infeasible, match="the least that is predicted with float activations is about"):
        compile_(place, "none", "150KBram", activations="float")


@pytest.mark.slow
def test_another_budget_and_a_given_plan(place: Path, free: Artifact, held: Artifact) -> None:
    with quick():
        result = ptqc.resolve(free.folder, output=place / "resolved", budget="200KBram", cache=place / "cache")
        assert result.manifest["memory"]["needed_bytes"] <= 200_000
        again: Any = {"output": place / "again", "cache": place / "cache", "plan": dict(held.plan)}
        assert kept_budgets(ptqc.resolve(free.folder, budget="150KBram", **again))["memory"] is True
        with pytest.raises(UsageError, match="the file of the given plan needs"):
            ptqc.resolve(free.folder, budget="100KBram", **again, force=True)


def test_a_file_that_needs_more_is_delivered_with_a_warning(
    place: Path, free: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = memory.MemoryBudget.report

    def report(*arguments: Any) -> Any:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(memory, "loaded_bytes", lambda _proto: 2_000_000)
            return whole(*arguments)

    monkeypatch.setattr(memory.MemoryBudget, "report", report)
    with quick():
        options: Any = {"output": place / "missed", "cache": place / "cache", "budget": "1MBram"}
        result = ptqc.resolve(free.folder, **options)
        assert kept_budgets(result)["memory"] is False
        assert "over the budget of 1,000,000 B of memory" in " ".join(result.summary().split())
        with pytest.raises(Missed, match="over the budget of 1,000,000 B of memory"):
            ptqc.resolve(free.folder, **options, strict=True, force=True)
