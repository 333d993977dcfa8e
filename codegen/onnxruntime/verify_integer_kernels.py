"""Every integer kernel of a packed file, given the integers that ONNX Runtime gave it, against the reference."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnx

from ptqc.codegen.onnxruntime.lookup import StoredLookup, lookups
from ptqc.errors import VerificationError
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.ir import reference
from ptqc.ir.lowered import Lowered
from ptqc.ir.operators.step import LoweredStep


def compare(
    proto: onnx.ModelProto,
    lowered: Lowered,
    samples: Sequence[Feeds],
    renamed: Mapping[str, str] | None = None,
    own: Mapping[str, str] = MappingProxyType({}),
) -> tuple[int, int]:
    """Kernels compared, and the numbers that they gave; all must be the reference's, or within its bounds.

    renamed: name in the lowered graph -> name in the file; None where they are the same. own: the model's
    name of a value, by its name in the lowered graph, where messages are to have another one. Raises VerificationError.
    """
    steps: list[LoweredStep | StoredLookup] = [*reference.steps(lowered), *lookups(lowered.model)]
    names = sorted({name for step in steps for name in (*step.inputs, step.output)})
    short = names if renamed is None else [renamed[name] for name in names]
    if not steps:
        return 0, 0
    runner = Runner(proto, short)
    compared = 0
    for feeds in samples:
        found = runner.run(feeds, short)
        values = {name: found[other] for name, other in zip(names, short, strict=True)}
        compared += sum(_check(step, values, own) for step in steps)
    return len(steps), compared


def _check(step: LoweredStep | StoredLookup, values: Mapping[str, np.ndarray], own: Mapping[str, str]) -> int:
    """The size of one kernel's output. Raises VerificationError where anything in it differs."""
    low, high = step.bounds(values) if isinstance(step, StoredLookup) else reference.bounds(step, values)
    found = values[step.output]
    name = f"{step.kind} {own[step.output]}" if step.output in own else step.name
    if found.shape != low.shape:
        raise VerificationError(f"{name} has the shape {found.shape}; the reference has {low.shape}")
    wrong = int(np.count_nonzero(~((low <= found) & (found <= high))))  # NaN included
    if wrong:
        distance = np.maximum(low.astype(np.float64) - found, found - high.astype(np.float64)).max()
        what = "real values" if found.dtype.kind == "f" else "integers"
        raise VerificationError(
            f"{name}: {wrong} of {found.size} {what} differ from the reference, by up to {distance:.6g}"
        )
    return found.size
