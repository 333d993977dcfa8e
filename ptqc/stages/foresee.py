"""What cannot work, said before anything is measured: budgets below every file, operators without native kernels."""

import json
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from ptqc import guarded
from ptqc.budget import Budgets
from ptqc.codegen.cpu.target import check_model
from ptqc.codegen.program.folding import SIZES, entering
from ptqc.errors import Infeasible, NoKernel, TargetError
from ptqc.nodes import constant
from ptqc.operators import is_float
from ptqc.options import CompileOptions, TargetOptions
from ptqc.scratch import scratch
from ptqc.stages.inspecting.smallest import about, lower_bound
from ptqc.stages.prepare import Prepared

NAMED = 5
SECONDS = 120.0
KNOWN = "ptqc.codegen.cpu.known"


def check_foreseeable(prepared: Prepared, budgets: Budgets, options: CompileOptions, targets: TargetOptions) -> None:
    """Raises Infeasible for a size that no file of the model has, TargetError for what certainly has no kernel."""
    _check_size(prepared, budgets, options)
    if targets.target is not None and not targets.allow_missing_target:
        check_kernels(prepared.model)


def _check_size(prepared: Prepared, budgets: Budgets, options: CompileOptions) -> None:
    if budgets.size is None:
        return
    limit = budgets.size.limit(prepared.origin.size, prepared.origin.weights)
    bound = lower_bound(prepared.model, options.bits)
    if limit >= bound.bytes:
        return
    smallest = max(about(prepared.model, options.bits), bound.bytes)
    named = ", ".join(f"{what} {size:,} B" for what, size in bound.parts[:NAMED])
    raise Infeasible(
        f"the budget of {limit:,} bytes cannot be met: the narrowest codes of all weights alone take {bound.bytes:,} "
        f"bytes, and the smallest reachable file has about {smallest:,}. Largest parts: {named}",
        smallest,
        bound.parts,
    )


def check_kernels(model: ir.Model) -> None:
    """Raises TargetError where the native library cannot take the model, or has no kernel of an operator that it needs.

    Only what is certain is refused: operators that read numbers computed from the model's inputs.
    """
    expanded = check_model(model)
    known = _known()
    for node in _computing(expanded):
        if node.domain or node.op_type not in known:
            raise NoKernel(
                f"the cpu target has no kernel for {node.op_type} {node.outputs[0].name}: the operator is not known to "
                "it; --allow-missing-target delivers the rest"
            )


def _computing(model: ir.Model) -> Iterator[ir.Node]:
    """Nodes that make floats of floats that are not constant."""
    moving = {value for value in model.graph.inputs if constant(value) is None}
    for node in model.graph:
        moved = [] if node.op_type in SIZES else [v for v in entering(node) if v is not None and v in moving]
        if not moved:
            continue
        moving.update(node.outputs)
        if any(map(is_float, moved)) and any(map(is_float, node.outputs)):
            yield node


def _known() -> set[str]:
    """Operators that have kernels. Raises TargetError where TVM does not load."""
    with scratch() as folder:
        path = Path(folder) / "known.json"
        problem = guarded.run(KNOWN, [str(path)], SECONDS).problem
        if problem is not None:
            raise TargetError(f"TVM {problem}; leave the cpu target out")
        return set(json.loads(path.read_text()))
