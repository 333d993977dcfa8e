"""Inline model-local functions, so that every later pass sees ONNX's own operators only."""

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir
import onnx_ir.passes.common as common

from ptqc.notes import Level, Note
from ptqc.passes.base import Effect, Probed, Result


@dataclass(frozen=True)
class InlineFunctions:
    """Inline every function, and make constants of inputs that only have a default value (IR version 3 wrote so)."""

    name: ClassVar[str] = "inline-functions"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, probed: Probed) -> Result[Probed]:
        """Inline, then drop the functions and the opsets that nothing uses any more."""
        model = probed.model
        notes = [Note(self.name, function.name, "inlined") for function in model.functions.values()]
        common.InlinePass()(model)
        model.functions.clear()
        notes += _without_defaults(model)
        idle = bool(common.RemoveUnusedOpsetsPass()(model).modified)
        return probed.rewritten(notes, unsaid=idle)


def _without_defaults(model: ir.Model) -> list[Note]:
    """Make constants of inputs that have a default value. Some exporters list every weight so: one note for all."""
    result = [value for value in model.graph.inputs if value.is_initializer()]
    if not result:
        return []
    for value in result:
        model.graph.inputs.remove(value)
    were = "was an input" if len(result) == 1 else f"and {len(result) - 1:,} more were inputs"
    message = f"{were} with a default value: now constant, since weights must not change at run time"
    return [Note(InlineFunctions.name, result[0].name or "", message, Level.WARNING)]
