"""What computes in float in the delivered file, and why."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ptqc.ir.layers import why_not_a_layer
from ptqc.ir.nodes import constant
from ptqc.ir.operators import Trait, absorbs, data_inputs, is_float, keeps_codes, known
from ptqc.ir.plan import Plan
from ptqc.ir.recorded import remembered, source_of
from ptqc.ir.sites import UNSEEN, find_kernels
from ptqc.notes import Level, Note
from ptqc.passes.equalize.outliers import Remedy, scales_of_rows

STEP = "lower"
COSTS = "8-bit activations would cost more accuracy than they are worth"


@dataclass(frozen=True)
class FloatOperator:
    """A node that computes in float, by the name of its output, and why it does."""

    name: str
    op_type: str
    reason: str

    @property
    def note(self) -> Note:
        """What the user is told."""
        return Note(STEP, self.name, f"{self.op_type} computes in float: {self.reason}")


def float_operators(model: ir.Model, plan: Plan, remedies: Sequence[Remedy] = ()) -> list[FloatOperator]:
    """The nodes that compute in float. remedies: what was done about tensors, and serves integer kernels."""
    capable = {kernel.node for kernel in find_kernels(model, plan.layers)}
    split = {remedy.tensor for remedy in remedies if remedy.channels}
    scaled = {name: each.tensor for each in remedies if each.by_row for name in scales_of_rows(each.rest)}
    operators = []
    for node in _float_nodes(model, plan):
        name = str(node.outputs[0].name)
        reason = _wide(node, split) or (f"it finds a scale for each row of {scaled[name]}" if name in scaled else None)
        operators.append(FloatOperator(name, node.op_type, reason or _reason(node, plan, capable)))
    return operators


def _float_nodes(model: ir.Model, plan: Plan) -> Iterator[ir.Node]:
    saturated, stand_ins = set(), remembered(model)
    for node in model.graph:
        name = str(node.outputs[0].name)
        if name in plan.integer_here or name in saturated:
            absorbed = absorbs(node)
            if absorbed is not None and absorbed.outputs[0].name in plan.params:
                saturated.add(str(absorbed.outputs[0].name))
            continue
        if source_of(node, stand_ins) is not None:  # the file does not have it
            continue
        on_codes = keeps_codes(node) and all(v.name in plan.params for v in (node.inputs[0], *node.outputs) if v)
        if not on_codes and any(is_float(v) for v in node.outputs):
            yield node


def _wide(node: ir.Node, split: Collection[str]) -> str | None:
    """Why a layer of wide channels alone computes in float."""
    read = node.inputs[0] if node.inputs else None
    maker = read.producer() if read is not None else None
    if maker is None or maker.op_type != "Gather":
        return None
    tensor = str(maker.inputs[0].name)  # type: ignore[union-attr]
    return f"it multiplies the outlier channels of {tensor}, which 8 bits cannot hold" if tensor in split else None


def _reason(node: ir.Node, plan: Plan, capable: set[str]) -> str:
    name = str(node.outputs[0].name)
    if UNSEEN in node.metadata_props:
        return "it reads what a branch gives that no calibration sample enters"
    layer = next((layer for layer in plan.layers if layer.name == name), None)
    if name in plan.integer:
        return "the runtime that it is for fuses it with what is real; ONNX Runtime has no such kernel"
    if layer is not None or name in capable:
        return COSTS
    operator = known(node)
    if operator is not None and Trait.LAYER in operator.traits:
        return why_not_a_layer(node)
    if keeps_codes(node):
        return "its input is not quantized"
    has_kernel = operator is not None and bool(operator.kernels)
    if has_kernel and any(constant(value) is not None for value in data_inputs(node)):
        return "one of its operands is constant"
    return "ONNX Runtime has no integer kernel for it"


def unquantized_weights(plan: Plan) -> list[Note]:
    """Weights that are not stored in integers."""
    return [
        Note("allocate", name, f"is stored as {form}", Level.INFO)
        for name, form in plan.formats.items()
        if form.is_plain
    ]


def rounded_for_float(plan: Plan) -> list[Note]:
    """Activations that layers in float read with fewer digits."""
    return [
        Note(STEP, site, f"is rounded to {form} for layers in float", Level.INFO)
        for site, form in plan.cast_sites.items()
    ]
