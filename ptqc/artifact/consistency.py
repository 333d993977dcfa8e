"""Checks at the end that what was said earlier still holds: the loss of the activations, plan and manifest."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ptqc.errors import VerificationError
from ptqc.formats import coded
from ptqc.ir.plan import Plan, write_json
from ptqc.passes.allocate.choose_activations import Checked
from ptqc.passes.allocate.fit import Fitted
from ptqc.passes.quantize.phases import Decided

# Codes flip where sums are ordered differently, as on another processor than the one that measured.
FACTOR, ALLOWANCE = 2.0, 1e-6


def check_activations(decided: Decided, plan: Plan) -> float:
    """What the plan's activations lose with float weights: as was measured, where they are those that were chosen.

    Raises VerificationError where they, or fewer real numbers of few digits, now lose clearly more.
    """
    if not plan.activations:
        return 0.0
    found = Checked(decided).loss_of(plan.rounded)
    promised = decided.activation_loss
    given, chosen = plan.activations, decided.activations
    is_measured = coded(given) == coded(chosen) and given.items() <= chosen.items()
    if is_measured and not found <= FACTOR * promised + ALLOWANCE:  # NaN included
        raise VerificationError(
            f"the plan's activations lose {found:.3g} {decided.loss_unit}; {promised:.3g} were measured"
        )
    return promised if given == chosen else found


def check_documents(manifest: Mapping[str, Any], plan: Mapping[str, Any], fitted: Fitted) -> None:
    """Read the plan back, and compare what the manifest says of the file. Raises VerificationError."""
    read = Plan.from_json(json.loads(write_json(plan)), fitted.plan)
    if read != fitted.plan:
        raise VerificationError("the plan as written is not the plan of the file")
    weights: Counter[str] = Counter()
    for weight in fitted.plan.weights:
        weights[str(fitted.plan.formats[weight.name])] += weight.size
    said = manifest["weights_by_format"], manifest["file"]["bytes"]
    if said != (weights, fitted.exported.size):
        raise VerificationError("the manifest does not describe the file")
