"""Remove what no output needs: nodes and initializers."""

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ptqc.notes import Note
from ptqc.passes.base import Effect, RewriteContext
from ptqc.passes.graph_tools import infer_shapes, remove_dead


@dataclass(frozen=True)
class RemoveDead:
    """Remove dead nodes and initializers, then infer the shapes anew."""

    name: ClassVar[str] = "remove-dead"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, model: ir.Model, context: RewriteContext) -> list[Note]:  # noqa: ARG002
        """Leave only what the outputs need."""
        before = sum(1 for _ in model.graph.all_nodes())
        remove_dead(model)
        infer_shapes(model)
        removed = before - sum(1 for _ in model.graph.all_nodes())
        return [Note(self.name, "", f"{removed} nodes that no output needs removed")] if removed else []
