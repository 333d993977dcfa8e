"""Small models written as text, for the tests of the rewrites."""

import numpy as np
import onnx_ir as ir

from ptqc.notes import Note
from ptqc.passes.base import Feeds, Probed, Rewrite
from ptqc.passes.effects import fingerprint
from ptqc.passes.runner import run_rewrites


def rewrite(model: ir.Model, step: Rewrite, **feeds: np.ndarray) -> list[Note]:
    """Apply one pass; the pipeline compares the outputs before and after on the feeds.

    The pass must also say that it changed the model where it did: the pipeline compares nothing otherwise.
    """
    probe: list[Feeds] = [feeds]
    copy = model.clone()
    before = fingerprint(copy)
    assert step.apply(Probed(copy, probe)).changed or fingerprint(copy) == before
    return run_rewrites(model, (step,), probe)


def operators(model: ir.Model) -> list[str]:
    """Operator types of the main graph, in order."""
    return [node.op_type for node in model.graph]
