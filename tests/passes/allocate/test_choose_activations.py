import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse
from lowering import CONSTANTS, RESIDUAL
from measuring import measured as measure

from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.execution.walk import Slicer
from ptqc.ir.sites import ScaleGroup, source_params
from ptqc.losses import UNITS, OutputLoss
from ptqc.passes.allocate.choose_activations import WORTH, ChooseActivations, Worth
from ptqc.passes.quantize.phases import Analysis, Sensitivities
from ptqc.passes.reconstruct.quantized_walk import run_quantized
from ptqc.utils.deadline import Deadline


@pytest.fixture(scope="module")
def model() -> ir.Model:
    return parse(RESIDUAL, **CONSTANTS)


@pytest.fixture(scope="module")
def measured(model: ir.Model, tmp_path_factory: pytest.TempPathFactory) -> Sensitivities:
    feeds: list[Feeds] = [{"x": noise(1, 3, 8, 8, seed=seed)} for seed in range(32)]
    return measure(model, feeds, tmp_path_factory.mktemp("samples"), (2, 4))


@pytest.fixture
def context(measured: Sensitivities) -> Analysis:
    """A copy to write on."""
    return Analysis.after(measured, site_losses=dict(measured.site_losses), macs=dict(measured.macs))


def true_loss(model: ir.Model, context: Analysis) -> float:
    """Of the chosen sites on the held-back samples, through another way of rounding."""
    sites = [site for site in context.sites if site.name in context.activations]
    params = source_params(sites, context.ranges)
    batches = list(context.held_back.batches(8))
    real = list(map(Runner(model).run, batches))
    result = run_quantized(Slicer(model), batches, params)
    loss = OutputLoss.of(context.kinds, real)
    return float(np.mean([loss(a, b) for a, b in zip(real, result, strict=True)]))


def test_everything_that_can_be_integer(model: ir.Model, context: Analysis) -> None:
    result = ChooseActivations("integer").apply(context)
    context, notes = result.output, list(result.notes)
    assert set(context.activations) == {site.name for site in context.sites}
    assert context.activation_loss == pytest.approx(true_loss(model, context), rel=1e-3)
    assert context.activation_loss > 0
    assert notes == []


def test_nothing(context: Analysis) -> None:
    result = ChooseActivations("float").apply(context)
    context, (note,) = result.output, result.notes
    assert (context.activations, note.message) == ({}, "all activations stay float")


def test_parameters_are_those_that_were_observed(context: Analysis) -> None:
    context = ChooseActivations("integer").apply(context).output
    assert all(context.activations[name] is context.ranges[name] for name in context.activations)


@pytest.mark.parametrize("limit", [1e-7, 1e-5, 1e-4, 1e-3, 1.0])
def test_the_limit_holds_for_the_whole_choice(model: ir.Model, context: Analysis, limit: float) -> None:
    context = ChooseActivations("auto", limit).apply(context).output
    assert context.activation_loss <= limit
    assert context.activation_loss == pytest.approx(true_loss(model, context), rel=1e-3, abs=1e-12)


def test_what_costs_much_and_saves_little_stays_float(context: Analysis) -> None:
    """Though the limit has room for it."""
    first, *others = context.layers
    context = replace(context, macs={**context.macs, first.name: 10**4} | {layer.name: 10**7 for layer in others})
    costly = context.site_of[first.input]
    context = replace(context, site_losses=dict.fromkeys(context.site_losses, 1e-6) | {costly.name: 0.5})
    worth = Worth.of(context)
    assert costly not in worth.sites(1.0, worth.times("arithmetic"))
    worth = Worth.of(replace(context, macs={**context.macs, first.name: 10**8}))
    assert costly in worth.sites(1.0, worth.times("arithmetic"))


def test_what_takes_longer_on_codes_stays_float(tmp_path: Path) -> None:
    """However little it loses: a convolution whose groups are narrow takes several times as long on codes."""
    graph = """g (float[N,8,16,16] x) => (float[N,64,16,16] y) {
        a = Conv<pads=[1,1,1,1], group=8>(x, w1)
        b = Relu(a)
        y = Conv<pads=[1,1,1,1]>(b, w2)
    }"""
    narrow = parse(graph, w1=noise(32, 1, 3, 3, seed=1) / 3, w2=noise(64, 32, 3, 3, seed=2) / 17)
    value = Analysis.after(measure(narrow, [{"x": noise(1, 8, 16, 16, seed=seed)} for seed in range(16)], tmp_path))
    worth = Worth.of(replace(value, site_losses=dict.fromkeys(value.site_losses, 1e-9)))
    for times in (worth.times(), worth.times("arithmetic")):
        assert [site.name for site in worth.sites(1.0, times)] == ["b", "y"]
    assert worth.saved(worth.sites(1.0, worth.times()), worth.times()) > 0 > worth.saved(value.sites, worth.times())


@pytest.mark.parametrize("activations", ["auto", "integer"])
def test_small_operators_stay_float_in_onnxruntime(context: Analysis, activations: Literal["auto", "integer"]) -> None:
    """Conversions of so small tensors take longer than multiplying codes saves; in libraries they are no operators."""
    worth = Worth.of(replace(context, site_losses=dict.fromkeys(context.site_losses, 0.0)))
    assert worth.saved(context.sites, worth.times()) < 0
    assert worth.sites(1.0, worth.times()) == []
    assert set(worth.sites(1.0, worth.times("arithmetic"))) == set(context.sites)
    chosen = ChooseActivations(activations, limit=1.0).apply(context).output.activations
    assert bool(chosen) == (activations == "integer")
    in_library = ChooseActivations(activations, limit=1.0, clock="arithmetic").apply(context).output
    assert len(in_library.activations) == len(context.sites)


def test_more_loss_buys_more_time(context: Analysis) -> None:
    worth = Worth.of(context)

    def time(limit: float) -> float:
        chosen = ChooseActivations("auto", limit, clock="arithmetic").apply(context).output
        return worth.network.predict(worth.times("arithmetic"), context.tensors_of(chosen.activations))

    taken = [time(limit) for limit in (1e-7, 1e-4, 1e-2, 1.0)]
    assert taken == sorted(taken, reverse=True)
    assert taken[0] > taken[-1] == worth.network.predict(worth.times("arithmetic"), context.tensors_of(context.ranges))


def test_the_default_limit_is_that_of_the_losss_unit(context: Analysis) -> None:
    assert context.loss_unit == "nat"
    context = ChooseActivations().apply(context).output
    assert context.activation_loss <= UNITS["nat"].tolerance


def test_sums_of_losses_that_are_too_hopeful_are_tightened(context: Analysis) -> None:
    """Losses measured one by one may add up to less than what all of them cost together."""
    context = ChooseActivations("integer").apply(context).output
    limit = context.activation_loss / 4
    context = replace(context, site_losses={name: loss / 500 for name, loss in context.site_losses.items()})
    worth = Worth.of(context)
    assert len(worth.sites(limit, worth.times("arithmetic"))) >= len(context.sites) - 1
    context = ChooseActivations("auto", limit, clock="arithmetic").apply(context).output
    assert 0 < context.activation_loss <= limit


def test_losses_measured_as_zero(context: Analysis) -> None:
    context = replace(context, site_losses=dict.fromkeys(context.site_losses, 0.0))
    context = ChooseActivations("auto", 1e-9).apply(context).output
    assert context.activation_loss <= 1e-9


def subsets(sites: Sequence[ScaleGroup]) -> Iterator[list[ScaleGroup]]:
    for count in range(len(sites) + 1):
        yield from (list(chosen) for chosen in itertools.combinations(sites, count))


def cost(worth: Worth, sites: list[ScaleGroup], limit: float) -> float:
    """What the program minimizes, as a share of the time in float, and infinity beyond the limit."""
    spent = sum(worth.sensitivities.site_losses[site.name] for site in sites) / limit
    return WORTH * spent - worth.saved(sites, worth.times()) if spent <= 1 + 1e-6 else np.inf


@pytest.mark.parametrize("seed", range(12))
def test_no_set_of_sites_is_worth_more(context: Analysis, seed: int) -> None:
    rng = np.random.default_rng(seed)
    context = replace(context, site_losses={site.name: float(np.exp(rng.normal(-3, 2))) for site in context.sites})
    context = replace(
        context, macs={**context.macs, **{x.name: int(np.exp(rng.uniform(0, 17))) for x in context.layers}}
    )
    limit, worth = float(sum(context.site_losses.values()) * rng.uniform(0.05, 1.1)), Worth.of(context)
    best = min(cost(worth, sites, limit) for sites in subsets(context.sites))
    assert cost(worth, worth.sites(limit, worth.times()), limit) <= best + 2e-3


def test_a_choice_is_not_searched_for_beyond_the_deadline(context: Analysis) -> None:
    """One choice loses too much; there is no time for another."""
    late = replace(context, deadline=Deadline(0.0), site_losses=dict.fromkeys(context.site_losses, 1e-12))
    result = ChooseActivations("auto", limit=1e-10, clock="arithmetic").apply(late)
    late, (note,) = result.output, result.notes
    assert "1 choices of activations" in note.message
    assert (late.activations, late.activation_loss) == ({}, 0.0)
