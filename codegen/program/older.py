"""Listings of earlier artifacts, whose kernels said by their names what they are and how exact."""

from collections.abc import Mapping
from typing import Any

from ptqc.codegen.program.layout import ROUNDED
from ptqc.codegen.program.program import Accuracy

AT_ONE = {"sigmoid": 5e-7, "softplus": 2e-7, "tanh": 1e-6, "mish": 1e-6}
SUMS = ("reducesum", "reducemean")
PRODUCTS = ("dense", "depthwise", "matmul")
EXACT = ("copy", "constant", "dequantize", ROUNDED)
OUTSIDE = "@outside"


def stated(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """A call with its family, value and accuracy as fields, which today's listings have."""
    if "accuracy" in entry:
        return entry
    family = entry["kernel"].rpartition("_")[0]
    accuracy = Accuracy(
        is_exact=family in EXACT,
        adds_inputs=family in SUMS,
        adds_products=family.startswith(PRODUCTS),
        at_one=sum(AT_ONE.get(name, 0.0) for name in family.split("_")),
        to_bfloat16=family.endswith(ROUNDED),
    )
    return {**entry, "family": family, "value": entry["output"].removesuffix(OUTSIDE), "accuracy": vars(accuracy)}
