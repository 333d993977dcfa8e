"""What was found out about a model on its calibration set, to and from plain arrays and JSON for the store."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ptqc.formats import UINT8, Format, QuantParams
from ptqc.passes.context import Context
from ptqc.solutions import Solution

SEPARATOR = "|"


def pack(context: Context) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(document, arrays) of everything that later steps need."""
    arrays = {}
    for (weight, form), solution in context.solutions.items():
        arrays[f"{weight}{SEPARATOR}{form}{SEPARATOR}codes"] = solution.codes
        arrays[f"{weight}{SEPARATOR}{form}{SEPARATOR}scale"] = solution.scale
    document = {
        "ranges": {name: [p.scale, p.zero_point] for name, p in context.ranges.items()},
        "macs": context.macs,
        "axes": {weight: solution.axis for (weight, _), solution in context.solutions.items()},
        "errors": [[weight, str(form), value] for (weight, form), value in context.errors.items()],
        "weight_losses": [[weight, str(form), value] for (weight, form), value in context.weight_losses.items()],
        "site_losses": context.site_losses,
        "loss_unit": context.loss_unit,
        "quantized": sorted(context.quantized),
        "activation_loss": context.activation_loss,
    }
    return document, arrays


def unpack(context: Context, document: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Fill a fresh context of the same model with what `pack` gave."""
    context.ranges = {
        name: QuantParams(UINT8, float(np.float32(scale)), zero) for name, (scale, zero) in document["ranges"].items()
    }
    context.macs = dict(document["macs"])
    context.errors = {(weight, Format.parse(form)): value for weight, form, value in document["errors"]}
    context.weight_losses = {(weight, Format.parse(form)): value for weight, form, value in document["weight_losses"]}
    context.site_losses = dict(document["site_losses"])
    context.loss_unit = document["loss_unit"]
    context.quantized = {name: context.ranges[name] for name in document["quantized"]}
    context.activation_loss = document["activation_loss"]
    for weight, form in context.errors:
        stem = f"{weight}{SEPARATOR}{form}{SEPARATOR}"
        axis = document["axes"][weight]
        context.solutions[weight, form] = Solution(form, arrays[f"{stem}codes"], arrays[f"{stem}scale"], axis)
