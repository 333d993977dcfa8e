"""The least loss within a limit on memory: the choice that stays, and what budgets beside it contradict."""

from dataclasses import replace

import pytest
from graphs import noise, parse
from lowering import CONSTANTS, RESIDUAL
from measuring import measured as measure

from ptqc.errors import Infeasible
from ptqc.execution.onnxruntime import Feeds
from ptqc.formats import Integer
from ptqc.notes import Level
from ptqc.passes.allocate.allocation import Candidate, Problem
from ptqc.passes.allocate.choose_activations import ChooseActivations
from ptqc.passes.allocate.constraints.memory import PRECISION, MeetMemory, MemoryBudget, memory_model
from ptqc.passes.allocate.cost_model import OpLatencies, Timed
from ptqc.passes.allocate.joint import WeightCosts
from ptqc.passes.allocate.memory_model import MemoryModel
from ptqc.passes.quantize.phases import Analysis


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """With all activations in float."""
    feeds: list[Feeds] = [{"x": noise(1, 3, 8, 8, seed=seed)} for seed in range(32)]
    result = measure(parse(RESIDUAL, **CONSTANTS), feeds, tmp_path_factory.mktemp("samples"), (2, 4))
    return ChooseActivations("float").apply(result).output


@pytest.fixture(scope="module")
def memory(analysis: Analysis) -> MemoryModel:
    return memory_model(analysis)


@pytest.fixture(scope="module")
def least(analysis: Analysis, memory: MemoryModel) -> int:
    with pytest.raises(Infeasible) as refused:
        MeetMemory(memory, MemoryBudget(1)).apply(analysis)
    return refused.value.smallest


def peak(memory: MemoryModel, analysis: Analysis) -> int:
    return memory.peak(analysis.tensors_of(analysis.activations))


def test_a_choice_that_keeps_it_stays(analysis: Analysis, memory: MemoryModel) -> None:
    result = MeetMemory(memory, MemoryBudget(peak(memory, analysis))).apply(analysis)
    assert result.output is analysis
    assert result.notes == ()


def test_a_smaller_budget_is_kept(analysis: Analysis, memory: MemoryModel, least: int) -> None:
    assert least < peak(memory, analysis)
    result = MeetMemory(memory, MemoryBudget(least)).apply(analysis)
    assert peak(memory, result.output) <= least
    assert result.output.activation_loss > 0
    (note,) = result.notes
    assert note.level == (Level.WARNING if "without that budget" in note.message else Level.INFO)
    tight = MeetMemory(memory, MemoryBudget(least), limit=1e-12).apply(analysis)
    assert tight.notes[0].level == Level.WARNING
    # What was told is the least but for the precision of the search.
    with pytest.raises(Infeasible):
        MeetMemory(memory, MemoryBudget(int(least * (1 - 2 * PRECISION)))).apply(analysis)


def test_formats_that_lose_much_make_room_for_other_activations(analysis: Analysis, memory: MemoryModel) -> None:
    """Packed weights keep the memory as well as codes do; which of both is taken follows from what they lose."""
    layers = {weight.name: tuple(layer.name for layer in weight.layers) for weight in analysis.weights}
    sizes = {weight.name: weight.size for weight in analysis.weights}
    wide = tuple(Candidate(name, Integer(8), size, 0.0) for name, size in sizes.items())
    narrow = tuple(Candidate(name, Integer(4), size, 1.0, memory=-3 * size) for name, size in sizes.items())
    weighed = WeightCosts(Problem((*wide, *narrow), 0), Problem(wide, 0), layers)
    budget = MemoryBudget(peak(memory, analysis) - max(sizes.values()))
    stays = MeetMemory(memory, budget, weighed=weighed, limit=1e3).apply(analysis).output
    assert stays.activations == analysis.activations
    assert stays.weight_memory == budget.bytes - peak(memory, analysis)
    changed = MeetMemory(memory, budget, weighed=weighed, limit=1e-9).apply(analysis).output
    assert changed.activations
    assert peak(memory, changed) <= budget.bytes


def test_what_a_file_needs_more_counts(analysis: Analysis, memory: MemoryModel, least: int) -> None:
    with pytest.raises(Infeasible):
        MeetMemory(memory, MemoryBudget(least), more=100).apply(analysis)
    assert peak(memory, MeetMemory(memory, MemoryBudget(least + 100), more=100).apply(analysis).output) <= least


def test_a_latency_that_only_float_keeps_contradicts_it(analysis: Analysis, memory: MemoryModel, least: int) -> None:
    nodes = [operator.node for operator in memory.network.operators]
    times = OpLatencies("a runtime", dict.fromkeys(nodes, 10.0), dict.fromkeys(nodes, 1000.0), {}, {})
    timed = Timed(10.0 * len(nodes), memory.network, times)
    with pytest.raises(Infeasible, match="contradicts the others: those of time need at least about") as refused:
        MeetMemory(memory, MemoryBudget(least), timed=timed).apply(analysis)
    assert least < refused.value.smallest <= peak(memory, analysis)
    slow = replace(timed, limit=1000.0 * len(nodes))
    result = MeetMemory(memory, MemoryBudget(least), timed=slow).apply(analysis)
    assert result.output.proof is not None
    assert result.output.proof.prices.keys() == {"time"}
    impossible = replace(timed, limit=1.0)
    with pytest.raises(Infeasible, match="those of time cannot be met with any amount of memory"):
        MeetMemory(memory, MemoryBudget(least), timed=impossible).apply(analysis)
