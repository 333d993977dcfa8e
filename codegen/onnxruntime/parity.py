"""Every integer kernel of a packed file, given the integers that ONNX Runtime gave it, against the reference."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from ptqc import reference
from ptqc.errors import VerificationError
from ptqc.execute.onnxruntime import Feeds, Runner
from ptqc.lowered import Lowered


def compare(
    proto: onnx.ModelProto, lowered: Lowered, samples: Sequence[Feeds], renamed: Mapping[str, str] | None = None
) -> tuple[int, int]:
    """Kernels and codes compared; all must be equal.

    renamed: name in the lowered graph -> name in the file; None where they are the same. Raises VerificationError.
    """
    steps = list(reference.steps(lowered))
    names = sorted({name for step in steps for name in (*step.inputs, step.output)})
    short = names if renamed is None else [renamed[name] for name in names]
    runner = Runner(proto, short)
    compared = 0
    for feeds in samples:
        found = runner.run(feeds, short) if names else {}
        values = {name: found[other] for name, other in zip(names, short, strict=True)}
        compared += sum(_check(step, values) for step in steps)
    return len(steps), compared


def _check(step: reference.Step, values: Mapping[str, np.ndarray]) -> int:
    """The number of codes of one kernel. Raises VerificationError where any differs."""
    wanted, found = reference.compute(step, values), values[step.output]
    wrong = int(np.count_nonzero(wanted != found))
    if wrong:
        raise VerificationError(
            f"{step.name}: {wrong} of {wanted.size} integers differ from the reference, "
            f"by up to {int(np.abs(wanted.astype(int) - found).max())}"
        )
    return wanted.size
