"""All operators by name, and the tables that follow from what is known of each.

What installed packages say of an operator takes the place of what ptqc says.
"""

from collections.abc import Mapping

import onnx_ir as ir

from ptqc.ir.operators import (
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
from ptqc.ir.operators.base import Operator, Trait
from ptqc.plugins import Plugin, PluginKind, usable

FAMILIES = (layers, arithmetic, pooling, functions, normalization, reductions, moving, classical, others)


def added_operator(plugin: Plugin) -> Operator:
    """What a package says of an operator. Raises UsageError where it cannot be loaded or is something else."""
    operator = plugin.load()
    if not isinstance(operator, Operator):
        raise plugin.fault("is not an operator: give an object of ptqc.ir.operators.base.Operator")
    if operator.name != plugin.name:
        raise plugin.fault(f"says something of {operator.name}; give it that name")
    if bool(operator.kernels) != (operator.reference is not None):
        raise plugin.fault("has to have kernels and their reference, or neither")
    return operator


def _every() -> tuple[Operator, ...]:
    own = [operator for family in FAMILIES for operator in family.OPERATORS]
    every = (*own, *usable(PluginKind.OPERATOR, added_operator))
    return tuple({(operator.domain, operator.name): operator for operator in every}.values())


EVERY = _every()
# ONNX's own; those of other domains may have the same names.
OPERATORS: Mapping[str, Operator] = {operator.name: operator for operator in EVERY if not operator.domain}


def known(node: ir.Node) -> Operator | None:
    """What is known of a node's operator."""
    return None if node.domain else OPERATORS.get(node.op_type)


def named(*traits: Trait) -> frozenset[str]:
    """Names of the operators of any domain that have one of these traits."""
    return frozenset(operator.name for operator in EVERY if not operator.traits.isdisjoint(traits))
