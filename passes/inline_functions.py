"""Inline model-local functions, so that every later pass sees ONNX's own operators only."""

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir
import onnx_ir.passes.common as common

from ptqc.notes import Level, Note
from ptqc.passes.base import Effect, RewriteContext


@dataclass(frozen=True)
class InlineFunctions:
    """Inline every function, and make constants of inputs that only have a default value (IR version 3 wrote so)."""

    name: ClassVar[str] = "inline-functions"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, model: ir.Model, context: RewriteContext) -> list[Note]:  # noqa: ARG002
        """Inline, then drop the functions and the opsets that nothing uses any more."""
        notes = [Note(self.name, function.name, "inlined") for function in model.functions.values()]
        common.InlinePass()(model)
        model.functions.clear()
        for value in [value for value in model.graph.inputs if value.is_initializer()]:
            model.graph.inputs.remove(value)
            message = "was an input with a default value: now a constant, since weights must not change at run time"
            notes.append(Note(self.name, value.name or "", message, Level.WARNING))
        common.RemoveUnusedOpsetsPass()(model)
        return notes
