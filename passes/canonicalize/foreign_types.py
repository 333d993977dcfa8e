"""Types and ranks behind operators that ONNX's own shape inference does not know: ONNX Runtime is asked for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx
import onnx_ir as ir

from ptqc.execution.onnxruntime import Runner, session_options
from ptqc.ir.nodes import infer_shapes
from ptqc.passes.base import Effect, Probed, Result


@dataclass(frozen=True)
class ForeignTypes:
    """State the type and shape of what operators outside ONNX's own domain give, as far as a run can tell."""

    name: ClassVar[str] = "foreign-types"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, probed: Probed) -> Result[Probed]:
        """No notes: only what is known of values changes."""
        model = probed.model
        values = {str(v.name): v for node in model.graph if node.domain for v in node.outputs if v.name}
        inner = {name: value for name, value in values.items() if not value.is_graph_output()}
        if inner and probed.probe:
            _state(inner, probed)
        if values:
            infer_shapes(model)
        return probed.rewritten([])


def _state(values: Mapping[str, ir.Value], probed: Probed) -> None:
    """Give the values the types and shapes of a run."""
    runner = Runner(probed.model, list(values), session_options(optimize=False))
    result = runner.run({name: probed.probe[0][name] for name in runner.inputs}, list(values))
    declared = {entry.name: entry.shape for entry in runner.session.get_outputs()}
    for name, value in values.items():
        if not isinstance(result[name], np.ndarray):  # a sequence, or an optional without a value
            continue
        kind = onnx.helper.np_dtype_to_tensor_dtype(result[name].dtype)
        value.type = ir.TensorType(ir.DataType(kind))
        value.shape = _shape(declared[name], result[name].ndim)


def _shape(declared: Sequence[int | str | None], rank: int) -> ir.Shape:
    """The shape that ONNX Runtime inferred, which is empty where it did not; then the rank alone."""
    return ir.Shape(declared if len(declared) == rank else [None] * rank)
