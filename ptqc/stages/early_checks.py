"""Requests that cannot be met, refused before anything is measured: too small a budget, operators without kernels."""

from ptqc.budget import Budgets
from ptqc.codegen.targets import Chosen
from ptqc.errors import Infeasible
from ptqc.options import CompileOptions
from ptqc.stages.inspecting.smallest import estimated_size, lower_bound
from ptqc.stages.prepare import Prepared

NAMED = 5


def check_early(prepared: Prepared, budgets: Budgets, options: CompileOptions, chosen: Chosen | None) -> None:
    """Raises Infeasible for a size that no file of the model has, TargetError for what certainly has no kernel."""
    _check_size(prepared, budgets, options)
    if chosen is not None and not chosen.may_be_missing:
        chosen.target.check_kernels(prepared.model)


def _check_size(prepared: Prepared, budgets: Budgets, options: CompileOptions) -> None:
    if budgets.size is None:
        return
    limit = budgets.size.limit(prepared.origin.size, prepared.origin.weights)
    bound = lower_bound(prepared.model, options.bits)
    if limit >= bound.bytes:
        return
    smallest = max(estimated_size(prepared.model, options.bits), bound.bytes)
    named = ", ".join(f"{what} {size:,} B" for what, size in bound.parts[:NAMED])
    raise Infeasible(
        f"the budget of {limit:,} bytes cannot be met: the narrowest codes of all weights alone take {bound.bytes:,} "
        f"bytes, and the smallest reachable file has about {smallest:,}. Largest parts: {named}",
        smallest,
        bound.parts,
    )
