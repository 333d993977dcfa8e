"""What a session of a delivered file needs on x64 processors without VNNI, so that 8-bit weights do not saturate."""

from collections.abc import Mapping

from ptqc.codegen.onnxruntime.export import Exported
from ptqc.codegen.onnxruntime.functions import UnpackFunction, UnpackKind
from ptqc.execution.saturation import EXACT_SUMS, IN_FLOAT


def settings(exported: Exported) -> Mapping[str, str]:
    """Entries of a session; none where no integer kernel has weights of 8 bits.

    Where two of these share codes, or scales, from which their zero points are made, the fast way cannot be had.
    """
    kinds = (UnpackKind.LAYER, UnpackKind.WEIGHT)
    wide = {function.name for function in exported.functions if function.kind in kinds and _is_wide(function)}
    calls = [node for node in exported.packed.graph.node if node.op_type in wide]
    read = [name for call in calls for name in call.input[:2]]  # codes and scales
    if not calls:
        return {}
    return EXACT_SUMS if len(set(read)) == len(read) else IN_FLOAT


def _is_wide(function: UnpackFunction) -> bool:
    return function.form is not None and function.form.code_bits == 8
