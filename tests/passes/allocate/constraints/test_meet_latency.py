"""The least loss within a time: against brute force, the choice that stays, and what cannot be reached."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse
from lowering import CONSTANTS, RESIDUAL
from measuring import measured as measure

from ptqc.errors import Infeasible
from ptqc.execution.onnxruntime import Feeds
from ptqc.notes import Level
from ptqc.passes.allocate.allocation import LOSS
from ptqc.passes.allocate.choose_activations import ChooseActivations
from ptqc.passes.allocate.constraints.latency import LatencyBudget, MeetLatency
from ptqc.passes.allocate.cost_model import Network, OpLatencies
from ptqc.passes.allocate.joint import CODES, NANOSECONDS
from ptqc.passes.quantize.phases import Analysis
from ptqc.solver.integer_program import Goal, solve


@pytest.fixture(scope="module")
def model() -> ir.Model:
    return parse(RESIDUAL, **CONSTANTS)


@pytest.fixture(scope="module")
def measured(model: ir.Model, tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    feeds: list[Feeds] = [{"x": noise(1, 3, 8, 8, seed=seed)} for seed in range(32)]
    result = measure(model, feeds, tmp_path_factory.mktemp("samples"), (2, 4))
    return ChooseActivations("auto", 1e-7).apply(result).output


@pytest.fixture
def context(measured: Analysis) -> Analysis:
    """A copy to write on."""
    return replace(measured, site_losses=dict(measured.site_losses))


@pytest.fixture(scope="module")
def network(model: ir.Model, measured: Analysis) -> Network:
    return Network.of(model, replace(measured.roles, activations=measured.ranges))


def random_times(network: Network, seed: int) -> OpLatencies:
    rng = np.random.default_rng(seed)

    def column(names: Iterator[str], mean: float) -> dict[str, float]:
        return {name: float(np.exp(rng.normal(mean, 1))) for name in names}

    nodes, tensors = [o.node for o in network.operators], [e.tensor for e in network.edges]
    return OpLatencies(
        "a runtime", *(column(iter(n), m) for n, m in ((nodes, 9), (nodes, 8.5), (tensors, 6), (tensors, 6)))
    )


def even_times(network: Network) -> OpLatencies:
    """Integer operators take a third of the time of float ones, conversions a tenth."""
    nodes, tensors = [o.node for o in network.operators], [e.tensor for e in network.edges]
    columns = (dict.fromkeys(names, ns) for names, ns in ((nodes, 3e5), (nodes, 1e5), (tensors, 3e4), (tensors, 3e4)))
    return OpLatencies("a runtime", *columns)


def subsets(context: Analysis) -> Iterator[set[str]]:
    names = [site.name for site in context.sites]
    for count in range(len(names) + 1):
        yield from (set(chosen) for chosen in itertools.combinations(names, count))


def chosen(context: Analysis, network: Network, times: OpLatencies, goal: Goal) -> set[str]:
    selection = solve(MeetLatency(network, times, LatencyBudget(1.0)).program(context), goal).selection
    return {name for name, state in selection.items() if state == CODES}


@pytest.mark.parametrize("seed", range(12))
def test_no_set_of_sites_within_the_time_loses_less(context: Analysis, network: Network, seed: int) -> None:
    rng, times = np.random.default_rng(seed), random_times(network, seed)
    context = replace(context, site_losses={site.name: float(np.exp(rng.normal(-3, 2))) for site in context.sites})
    taken = {frozenset(s): network.predict(times, context.tensors_of(s)) for s in subsets(context)}
    shortest = min(taken.values())
    target = shortest + rng.uniform(0.02, 0.9) * (taken[frozenset()] - shortest)

    def loss(sites: set[str] | frozenset[str]) -> float:
        return sum(context.site_losses[name] for name in sites)

    result = chosen(context, network, times, Goal(LOSS, {NANOSECONDS: target}))
    assert taken[frozenset(result)] <= target * (1 + 1e-6)
    assert loss(result) <= min(loss(s) for s, ns in taken.items() if ns <= target) * (1 + 1e-3) + 1e-4


@pytest.mark.parametrize("seed", range(6))
def test_no_set_of_sites_is_faster_than_the_fastest(context: Analysis, network: Network, seed: int) -> None:
    times = random_times(network, seed)
    result = chosen(context, network, times, Goal(NANOSECONDS))
    shortest = min(network.predict(times, context.tensors_of(sites)) for sites in subsets(context))
    assert network.predict(times, context.tensors_of(result)) <= shortest * (1 + 1e-3)


def test_a_choice_that_is_fast_enough_stays(context: Analysis, network: Network) -> None:
    before = context.activations
    result = MeetLatency(network, even_times(network), LatencyBudget(1e9)).apply(context)
    context, notes = result.output, result.notes
    assert notes == ()
    assert context.activations is before


def test_the_limit_on_the_loss_gives_way_to_the_time(context: Analysis, network: Network) -> None:
    times, promised = even_times(network), context.activation_loss
    real = network.predict(times, ())
    result = MeetLatency(network, times, LatencyBudget(0.6 * real), limit=1e-7).apply(context)
    context, (note,) = result.output, result.notes
    assert context.proof is not None
    assert context.proof.answer.status == "optimal"
    assert context.proof.prices["time"] >= 0
    assert network.predict(times, context.tensors_of(context.activations)) <= 0.6 * real
    assert context.activation_loss > max(promised, 1e-7)
    assert note.level == Level.WARNING
    assert "without that budget at most 1e-07" in note.message


def test_less_time_never_loses_less(context: Analysis, network: Network) -> None:
    times = even_times(network)
    real, lost = network.predict(times, ()), []
    for share in (0.9, 0.7, 0.5, 0.4):
        context = MeetLatency(network, times, LatencyBudget(share * real)).apply(context).output
        lost.append(sum(context.site_losses[name] for name in context.activations))
    assert lost == sorted(lost)
    assert lost[0] < lost[-1]


def test_what_cannot_be_reached_names_the_shortest_time_and_what_takes_it(context: Analysis, network: Network) -> None:
    times = even_times(network)
    with pytest.raises(Infeasible, match=r"budget of 0\.01 ms cannot be met .* in a runtime\. Slowest: ") as refusal:
        context = MeetLatency(network, times, LatencyBudget(1e4)).apply(context).output
    shortest = min(network.predict(times, context.tensors_of(sites)) for sites in subsets(context))
    assert refusal.value.smallest == round(shortest)
    assert refusal.value.blockers[0][1] == 1e5
    context = MeetLatency(network, times, LatencyBudget(shortest)).apply(context).output


def test_stated_activations_leave_no_choice(context: Analysis, network: Network) -> None:
    context = replace(context, activations={})
    with pytest.raises(Infeasible, match="with float activations is"):
        context = MeetLatency(network, even_times(network), LatencyBudget(1e6), "float").apply(context).output
