"""What was found out about a model on its calibration set, to and from plain arrays and JSON for the store."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ptqc import losses
from ptqc.formats import UINT8, Format, QuantParams
from ptqc.passes.context import Context
from ptqc.solutions import Candidates, Solution

SEPARATOR = "|"


def pack(context: Context) -> dict[str, Any]:
    """Everything that later steps need, except for the candidates."""
    return {
        "ranges": {name: [p.scale, p.zero_point] for name, p in context.ranges.items()},
        "macs": context.macs,
        "weight_losses": [[weight, str(form), value] for (weight, form), value in context.weight_losses.items()],
        "site_losses": context.site_losses,
        "kinds": losses.to_json(context.kinds),
        "loss_unit": context.loss_unit,
        "quantized": sorted(context.activations),
        "activation_loss": context.activation_loss,
    }


def unpack(context: Context, document: Mapping[str, Any], candidates: Iterable[Candidates]) -> None:
    """Fill a fresh context of the same model with what `pack` gave, and with candidates."""
    context.ranges = {
        name: QuantParams(UINT8, float(np.float32(scale)), zero) for name, (scale, zero) in document["ranges"].items()
    }
    context.macs = dict(document["macs"])
    context.weight_losses = {(weight, Format.parse(form)): value for weight, form, value in document["weight_losses"]}
    context.site_losses = dict(document["site_losses"])
    context.kinds = losses.from_json(document["kinds"])
    context.loss_unit = document["loss_unit"]
    context.activations = {name: context.ranges[name] for name in document["quantized"]}
    context.activation_loss = document["activation_loss"]
    for found in candidates:
        context.take(found)


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
    candidates: dict[str, list[tuple[Solution, float]]] = {}
    for weight, written, axis, error in document:
        form = Format.parse(written)
        if form.is_given:
            solution = Solution(form, values(weight), np.empty(0, np.float32), axis)
        else:
            solution = Solution(form, arrays[_name(weight, form, "codes")], arrays[_name(weight, form, "scale")], axis)
        candidates.setdefault(weight, []).append((solution, error))
    return candidates


def _name(weight: str, form: Format, part: str) -> str:
    return f"{weight}{SEPARATOR}{form}{SEPARATOR}{part}"
