"""What passes share that choose sites and formats of weights in one program (`ptqc.passes.allocate.joint`)."""

from collections.abc import Collection, Mapping

from ptqc.ir.sites import ScaleGroup, useful_sites
from ptqc.notes import Level, Note
from ptqc.passes.allocate.allocation import BYTES, LOSS
from ptqc.passes.allocate.choose_activations import limit_of
from ptqc.passes.allocate.cost_model import Network, OpLatencies
from ptqc.passes.allocate.joint import CODES, FLOAT, SiteCosts, WeightCosts, joint_choice
from ptqc.passes.quantize.phases import Analysis, Sensitivities
from ptqc.solver.integer_program import Goal, JointChoice, Selection, solve

# Where two choices differ by less than this share of the largest loss that decides, the faster and smaller one wins.
TIE_WEIGHT = 1e-6
RELATIVE_GAP = 1e-3


def program_of(sensitivities: Sensitivities, weighed: WeightCosts, network: Network, times: OpLatencies) -> JointChoice:
    """Weights and sites with their losses, times and bytes."""
    more = weighed.on_codes.fixed - weighed.in_float.fixed
    sites = [
        SiteCosts(
            site.name, site.tensors, sensitivities.site_losses.get(site.name, 0.0), more / len(sensitivities.sites)
        )
        for site in sensitivities.sites
    ]
    return joint_choice(sites, weighed, network, times)


def least_loss(limits: Mapping[str, float], then: Collection[str]) -> Goal:
    """The goal of the least loss within limits. then: the resources of which less is better between equals."""
    ties = {resource: TIE_WEIGHT / max(limits[resource], 1.0) for resource in then}
    return Goal(LOSS, limits, ties, RELATIVE_GAP)


def sites_of(sensitivities: Sensitivities, selection: Selection) -> list[ScaleGroup]:
    """The sites that are on codes, but for those that serve no layer."""
    on_codes = [site for site in sensitivities.sites if selection[site.name] == CODES]
    return useful_sites(on_codes, sensitivities.kernels, {layer.name for layer in sensitivities.layers})


def note_on_loss(step: str, sensitivities: Sensitivities, lost: float, activation_limit: float, budget: object) -> Note:
    """What the 8-bit activations lose that a budget asks for: a warning where it is more than they may without it."""
    limit = limit_of(sensitivities.loss_unit, activation_limit)
    message = f"8-bit activations lose {lost:.3g} {sensitivities.loss_unit} to reach {budget}"
    if lost > limit:
        return Note(step, "", f"{message}; without that budget at most {limit:g}", Level.WARNING)
    return Note(step, "", message)


def pinned(analysis: Analysis, program: JointChoice) -> JointChoice:
    """The program with the activations that were chosen, which leaves the formats of weights."""
    states = {site.name: CODES if site.name in analysis.activations else FLOAT for site in analysis.sites}
    options = tuple(o for o in program.options if states.get(o.choice, o.state) == o.state)
    return JointChoice(options, program.events, program.fixed)


def smallest(analysis: Analysis, program: JointChoice) -> float:
    """About the bytes of the smallest file with the activations that were chosen: as the program has them."""
    return solve(pinned(analysis, program), Goal(BYTES)).value
