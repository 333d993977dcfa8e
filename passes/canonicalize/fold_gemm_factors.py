"""Gemm's factors folded into its constants: alpha A B + beta C becomes A B' + C'. Integer kernels take no factors."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.ir.nodes import constant, input_of, nodes_of, number, remove_dead, replace_constant
from ptqc.notes import Level, Note
from ptqc.passes.base import Effect, Probed, Result

# Which input each factor belongs to.
FACTORS = {"alpha": 1, "beta": 2}


@dataclass(frozen=True)
class FoldGemmFactors:
    """Fold alpha into a constant weight and beta into a constant bias; a bias times 0 is dropped."""

    name: ClassVar[str] = "fold-gemm-factors"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, probed: Probed) -> Result[Probed]:
        """One note for each factor that is not 1."""
        model = probed.model
        notes = []
        for node in nodes_of(model, "Gemm"):
            for name, index in FACTORS.items():
                factor = number(node, name, 1.0)
                if factor != 1.0:
                    notes.append(self._fold(model, node, name, index, factor))
        return probed.rewritten(notes, unsaid=remove_dead(model))

    def _fold(self, model: ir.Model, node: ir.Node, name: str, index: int, factor: float) -> Note:
        subject, value = node.outputs[0].name or "", input_of(node, index)
        array = constant(value)
        if value is not None and name == "beta" and factor == 0.0:
            node.resize_inputs(index)
        elif value is not None and array is None:
            reason = f"{name} = {factor:g} stays: {value.name}, which it multiplies, is computed"
            return Note(self.name, subject, reason, Level.SKIPPED)
        elif array is not None:
            scaled = (array.astype(np.float64) * factor).astype(array.dtype)
            replace_constant(model, node, index, scaled, f"{subject}_{'weight' if index == 1 else 'bias'}")
        del node.attributes[name]
        return Note(self.name, subject, f"{name} = {factor:g} folded")
