"""A rewrite: a Clip that has nothing to clip is dropped."""

from dataclasses import dataclass
from typing import ClassVar

from ptqc.ir.nodes import bypass, constant, input_of, nodes_of
from ptqc.notes import Note
from ptqc.passes.base import Effect, Probed, Result


@dataclass(frozen=True)
class DropIdleClip:
    """Drop each Clip to at least zero behind a Relu."""

    name: ClassVar[str] = "drop-idle-clip"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, given: Probed) -> Result[Probed]:
        """The graph without them, and a note for each."""
        notes = []
        for node in nodes_of(given.model, "Clip"):
            source, low = input_of(node, 0), constant(input_of(node, 1))
            producer = source.producer() if source is not None else None
            if source is None or producer is None or producer.op_type != "Relu" or low is None or low > 0:
                continue
            if bypass(node, source):
                notes.append(Note(self.name, node.outputs[0].name or "", "dropped: Relu has no values below zero"))
        return given.rewritten(notes)
