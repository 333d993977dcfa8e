"""Raise models below opset 18 to 18, the first with the bit operators that packed weights need."""

from dataclasses import dataclass
from typing import ClassVar

from ptqc.ir.editing import infer_shapes
from ptqc.notes import Note
from ptqc.passes.base import Effect, Probed, Result
from ptqc.passes.canonicalize.tools.opset_changes import adapters_of

TARGET = 18
# IR version 8 is the one that opset 18 came with.
MIN_IR_VERSION = 8
# Adapters from versions below go by types and ranks.
SHAPED = 13


@dataclass(frozen=True)
class ConvertOpset:
    """Convert opset 7 to 17 into 18; higher ones stay."""

    name: ClassVar[str] = "convert-opset"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, given: Probed) -> Result[Probed]:
        """Adapt the operators whose meaning changed, in subgraphs as well. Raises ModelError for what has no successor.

        That the outputs stay the same is checked on the probe feeds, as after every rewrite.
        """
        model = given.model
        version = model.graph.opset_imports[""]
        if version >= TARGET:
            return given.rewritten([])
        if version < SHAPED:
            infer_shapes(model)
        for node in list(model.graph.all_nodes()):
            for adapt in adapters_of(node.op_type, version) if not node.domain else ():
                adapt(model, node)
        model.graph.opset_imports[""] = TARGET
        model.ir_version = max(model.ir_version, MIN_IR_VERSION)
        compared = f"; the outputs on {len(given.probe)} samples are the same" if given.probe else ""
        return given.rewritten([Note(self.name, "", f"opset {version} converted to {TARGET}{compared}")])
