"""What was found out about a model on its calibration set, to and from plain arrays and JSON for the store."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ptqc import losses
from ptqc.formats import UINT8, Format, QuantParams
from ptqc.ir.quantized_weight import Candidates, QuantizedWeight
from ptqc.passes.quantize.phases import Analysis, AnalysisInput, CalibrationStats, Sensitivities, WeightCandidates

SEPARATOR = "|"


def pack(analysis: Analysis) -> dict[str, Any]:
    """Everything that later steps need, except for the candidates."""
    return {
        "ranges": {name: [p.scale, p.zero_point] for name, p in analysis.ranges.items()},
        "macs": analysis.macs,
        "weight_losses": [[weight, str(form), value] for (weight, form), value in analysis.weight_losses.items()],
        "site_losses": analysis.site_losses,
        "kinds": losses.to_json(analysis.kinds),
        "loss_unit": analysis.loss_unit,
        "quantized": sorted(analysis.activations),
        "activation_loss": analysis.activation_loss,
    }


def overview(setting: AnalysisInput) -> dict[str, Any]:
    """What is known so far of sites and weights, for people: no arrays."""
    document: dict[str, Any] = {}
    if isinstance(setting, CalibrationStats):
        document["ranges"] = {name: [params.low, params.high] for name, params in setting.ranges.items()}
    if isinstance(setting, WeightCandidates):
        document["errors"] = _by_weight(setting.errors)
    if isinstance(setting, Sensitivities):
        document["loss_unit"] = setting.loss_unit
        document["kinds"] = losses.to_json(setting.kinds)
        document["weight_losses"] = _by_weight(setting.weight_losses)
        document["site_losses"] = dict(setting.site_losses)
    if isinstance(setting, Analysis):
        document["quantized"] = sorted(setting.activations)
        document["activation_loss"] = setting.activation_loss
    return document


def _by_weight(figures: Mapping[tuple[str, Format], float]) -> dict[str, dict[str, float]]:
    by_weight: dict[str, dict[str, float]] = {}
    for (weight, form), figure in figures.items():
        by_weight.setdefault(weight, {})[str(form)] = figure
    return by_weight


def unpack(setting: AnalysisInput, document: Mapping[str, Any], candidates: Iterable[Candidates]) -> Analysis:
    """What `pack` was given, without what only measuring needs."""
    ranges = {
        name: QuantParams(UINT8, float(np.float32(scale)), zero) for name, (scale, zero) in document["ranges"].items()
    }
    sites = tuple(site for site in setting.sites if site.name in ranges)  # calibration drops those without values
    observed = CalibrationStats.after(setting, sites=sites, ranges=ranges, macs=dict(document["macs"]))
    return Analysis.after(
        WeightCandidates.with_candidates(observed, candidates),
        weight_losses={(weight, Format.parse(form)): value for weight, form, value in document["weight_losses"]},
        site_losses=dict(document["site_losses"]),
        kinds=losses.from_json(document["kinds"]),
        loss_unit=document["loss_unit"],
        activations={name: ranges[name] for name in document["quantized"]},
        activation_loss=document["activation_loss"],
    )


def pack_candidates(candidates: Candidates) -> tuple[list[Any], dict[str, np.ndarray]]:
    """(document, arrays); the float32 values are left to the model."""
    document, arrays = [], {}
    for weight, several in candidates.items():
        for solution, error in several:
            document.append([weight, str(solution.form), solution.axis, error])
            if not solution.form.is_given:
                arrays[_name(weight, solution.form, "codes")] = solution.codes
                arrays[_name(weight, solution.form, "scale")] = solution.scale
    return document, arrays


def unpack_candidates(
    document: Sequence[Any], arrays: Mapping[str, np.ndarray], values: Callable[[str], np.ndarray]
) -> Candidates:
    """What `pack_candidates` was given. values: the float32 values of a weight."""
    candidates: dict[str, list[tuple[QuantizedWeight, float]]] = {}
    for weight, written, axis, error in document:
        form = Format.parse(written)
        if form.is_given:
            solution = QuantizedWeight(form, values(weight), np.empty(0, np.float32), axis)
        else:
            solution = QuantizedWeight(
                form, arrays[_name(weight, form, "codes")], arrays[_name(weight, form, "scale")], axis
            )
        candidates.setdefault(weight, []).append((solution, error))
    return candidates


def _name(weight: str, form: Format, part: str) -> str:
    return f"{weight}{SEPARATOR}{form}{SEPARATOR}{part}"
