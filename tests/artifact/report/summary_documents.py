"""Parts of a manifest, as the summary and the explanation read them."""

from typing import Any


def manifest(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = {
        "source": {"bytes": 1_000_000},
        "file": {"bytes": 129_946},
        "budget": "13%",
        "activation_loss": 0.0,
        "allocation": {
            "loss": 0.002019, "unit": "nat", "gap": 1e-7, "limit": 130_000, "price_of_one_percent": 0.00066,
            "status": "optimal",
        },
        "weights_by_format": {"int5": 100, "int4": 300},
        "results": {
            "top1_agreement": 0.9844, "sqnr_db": 22.49, "loss": 0.00037, "loss_unit": "nat", "held_back_samples": 32,
            "float_score": None, "compiled_score": None,
        },
        "verification": {"integer_nodes": 32},
        "float_operators": {},
        "rounded_activations": {},
        "notes": [],
    }  # fmt: skip
    for path, value in changes.items():
        part, _, key = path.partition("__")
        if key:
            document[part][key] = value
        else:
            document[part] = value
    return document


def judged(name: str, kind: str, *figures: str) -> dict[str, Any]:
    messages = [{"name": text.rpartition(" ")[0], "text": text} for text in figures]
    return {"name": name, "judged_as": kind, "loss": 0.007, "loss_unit": "a unit", "figures": messages}
