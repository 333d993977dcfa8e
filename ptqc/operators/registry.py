"""All operators by name, and the tables that follow from what is known of each."""

from collections.abc import Mapping

import onnx_ir as ir

from ptqc.operators import (
    arithmetic,
    classical,
    functions,
    layers,
    moving,
    normalization,
    others,
    pooling,
    reductions,
)
from ptqc.operators.base import Operator, Trait

FAMILIES = (layers, arithmetic, pooling, functions, normalization, reductions, moving, classical, others)
EVERY: tuple[Operator, ...] = tuple(operator for family in FAMILIES for operator in family.OPERATORS)
# ONNX's own; those of other domains may have the same names.
OPERATORS: Mapping[str, Operator] = {operator.name: operator for operator in EVERY if not operator.domain}


def known(node: ir.Node) -> Operator | None:
    """What is known of a node's operator."""
    return None if node.domain else OPERATORS.get(node.op_type)


def named(*traits: Trait) -> frozenset[str]:
    """Names of the operators of any domain that have one of these traits."""
    return frozenset(operator.name for operator in EVERY if not operator.traits.isdisjoint(traits))
