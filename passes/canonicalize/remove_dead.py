"""Remove what no output needs: nodes and initializers."""

from dataclasses import dataclass
from typing import ClassVar

from ptqc.ir.nodes import infer_shapes, remove_dead
from ptqc.notes import Note
from ptqc.passes.base import Effect, Probed, Result


@dataclass(frozen=True)
class RemoveDead:
    """Remove dead nodes and initializers, then infer the shapes anew."""

    name: ClassVar[str] = "remove-dead"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, probed: Probed) -> Result[Probed]:
        """Leave only what the outputs need."""
        model = probed.model
        before = sum(1 for _ in model.graph.all_nodes())
        dead = remove_dead(model)
        infer_shapes(model)
        removed = before - sum(1 for _ in model.graph.all_nodes())
        notes = [Note(self.name, "", f"{removed} nodes that no output needs removed")] if removed else []
        return probed.rewritten(notes, unsaid=dead)
