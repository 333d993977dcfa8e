"""Small models written as text, for the tests of the rewrites."""

import numpy as np
import onnx_ir as ir

from ptqc.notes import Note
from ptqc.passes.base import Feeds, Rewrite
from ptqc.passes.pipeline import run_rewrites


def rewrite(model: ir.Model, step: Rewrite, **feeds: np.ndarray) -> list[Note]:
    """Apply one pass; the pipeline compares the outputs before and after on the feeds."""
    probe: list[Feeds] = [feeds]
    return run_rewrites(model, (step,), probe)


def operators(model: ir.Model) -> list[str]:
    """Operator types of the main graph, in order."""
    return [node.op_type for node in model.graph]
