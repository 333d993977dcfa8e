"""Branches that no sample enters: what is behind them stays in float, as nothing was seen of what they would give.

A range that one branch has shown cuts off what another branch gives. Only branches with layers count, whose condition
follows from values: a condition on sizes, as exporters write it around a Squeeze, is meant for other models.
"""

import numpy as np
import onnx_ir as ir

from ptqc.calibration.samples import Samples
from ptqc.execution.onnxruntime import Runner
from ptqc.ir.layers import find_inner_layers
from ptqc.ir.nodes import constant, nodes_of
from ptqc.ir.operators import Trait, named
from ptqc.ir.sites import UNSEEN
from ptqc.notes import Level, Note

STEP = "calibration"
BRANCHES = {"then_branch": True, "else_branch": False}
MEASURING = named(Trait.MEASURES)


def leave_unseen_in_float(model: ir.Model, samples: Samples) -> list[Note]:
    """Mark the nodes behind branches that no sample enters; a warning for each such branch. Changes the model."""
    conditions = {node: node.inputs[0] for node in nodes_of(model, "If") if node.graph is model.graph}
    inner = set(find_inner_layers(model)) if conditions else set()
    requested = {
        node: str(condition.name)
        for node, condition in conditions.items()
        if condition is not None and constant(condition) is None and _follows_from_values(condition)
    }
    requested = {
        node: name for node, name in requested.items() if any(_layers(node, branch, inner) for branch in BRANCHES)
    }
    if not requested:
        return []
    seen = _seen(model, samples, set(requested.values()))
    notes = []
    for node, name in requested.items():
        for branch, value in BRANCHES.items():
            if value not in seen[name] and _layers(node, branch, inner):
                _mark(node)
                message = (
                    f"no calibration sample enters the {branch} of this If: what follows it stays in float, since "
                    "ranges of the other branch would clip its values; give samples that enter it"
                )
                notes.append(Note(STEP, node.outputs[0].name or "", message, Level.WARNING))
    return notes


def _layers(node: ir.Node, branch: str, inner: set[ir.Node]) -> bool:
    """Whether there are layers in a branch."""
    return any(each in inner for each in node.attributes[branch].as_graph().all_nodes())


def _follows_from_values(value: ir.Value) -> bool:
    """Whether a value depends on more than sizes."""
    waiting, seen = [value], set[ir.Value]()
    while waiting:
        one = waiting.pop()
        maker = one.producer()
        if one in seen or constant(one) is not None:
            continue
        seen.add(one)
        if maker is None:
            return True
        if maker.op_type not in MEASURING:
            waiting += [read for read in maker.inputs if read is not None]
    return False


def _seen(model: ir.Model, samples: Samples, names: set[str]) -> dict[str, set[bool]]:
    """The values that conditions have on the samples."""
    seen: dict[str, set[bool]] = {name: set() for name in names}
    inner = sorted(names - {str(value.name) for value in model.graph.inputs})
    runner = Runner(model, inner)
    for feeds in samples:
        values = {**feeds, **runner.run(feeds, inner)}
        for name in names:
            seen[name].add(bool(np.any(values[name])))
    return seen


def _mark(node: ir.Node) -> None:
    """Mark a node and all that follows from it."""
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if UNSEEN not in each.metadata_props:
            each.metadata_props[UNSEEN] = ""
            waiting += [reader for output in each.outputs for reader in output.consumers()]
