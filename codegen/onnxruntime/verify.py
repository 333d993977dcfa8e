"""The checks that a written file passes before it is delivered.

Checker and load; census: every node that the plan makes integer is an integer kernel; parity: every kernel, given the
integers that ONNX Runtime gave it, yields exactly the reference's integers; agreement of the outputs with the unpacked
graph run without any optimization; size.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from ptqc import reference
from ptqc.codegen.onnxruntime.census import Census, take
from ptqc.codegen.onnxruntime.export import Exported
from ptqc.errors import VerificationError
from ptqc.execute.onnxruntime import Feeds, Runner, session_options
from ptqc.lowered import Lowered
from ptqc.plan import Plan

# Single steps of one code grow through the layers when sums are ordered differently; more than this is a fault.
OUTPUT_TOLERANCE = 0.1  # root mean square of the difference over that of the output


@dataclass(frozen=True)
class Verified:
    """What was checked and found."""

    operators: Mapping[str, int]
    integer_nodes: int
    kernels_compared: int
    codes_compared: int
    output_difference: float
    load_seconds: float

    def to_json(self) -> dict[str, Any]:
        """For the manifest: everything but the time."""
        document = asdict(self)
        del document["load_seconds"]
        return document


def verify(exported: Exported, lowered: Lowered, plan: Plan, samples: Sequence[Feeds], limit: int | None) -> Verified:
    """Run all checks. Raises VerificationError naming the first that fails."""
    data = exported.data
    if limit is not None and len(data) > limit:
        raise VerificationError(f"the file has {len(data):,} bytes, over the budget of {limit:,}")
    _check(exported.proto)
    census, seconds = _census(exported, lowered, plan)
    kernels, codes = _parity(exported, lowered, samples[:1])
    difference = _agreement(data, lowered, samples)
    return Verified(census.operators, len(plan.integer), kernels, codes, difference, seconds)


def _check(proto: onnx.ModelProto) -> None:
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError as error:
        raise VerificationError(f"the written file does not pass the ONNX checker: {error}") from error


def _census(exported: Exported, lowered: Lowered, plan: Plan) -> tuple[Census, float]:
    expected = {}
    for name, kernel in plan.integer.items():
        value = lowered.codes.get(kernel.output, kernel.output)
        expected[name] = (kernel.op_type, exported.renamed[value])
    started = time.monotonic()
    try:
        census = take(exported.proto, expected)
    except Exception as error:  # ONNX Runtime raises a dozen types of its own
        raise VerificationError(f"ONNX Runtime {ort.__version__} cannot load the written file: {error}") from error
    if census.missed:
        name, found = next(iter(census.missed.items()))
        raise VerificationError(
            f"{len(census.missed)} of {len(expected)} planned integer nodes run in float, first {name} (as {found})"
        )
    return census, time.monotonic() - started


def _parity(exported: Exported, lowered: Lowered, samples: Sequence[Feeds]) -> tuple[int, int]:
    """Kernels and codes compared with the reference; all must be equal."""
    steps = list(reference.steps(lowered))
    names = sorted({name for step in steps for name in (*step.inputs, step.output)})
    renamed = [exported.renamed[name] for name in names]
    runner = Runner(exported.proto, renamed)
    compared = 0
    for feeds in samples:
        found = runner.run(feeds, renamed) if renamed else {}
        values = {name: found[short] for name, short in zip(names, renamed, strict=True)}
        for step in steps:
            wanted = reference.compute(step, values)
            wrong = int(np.count_nonzero(wanted != values[step.output]))
            if wrong:
                raise VerificationError(
                    f"{step.name}: {wrong} of {wanted.size} integers differ from the reference, "
                    f"by up to {int(np.abs(wanted.astype(int) - values[step.output]).max())}"
                )
            compared += wanted.size
    return len(steps), compared


def _agreement(data: bytes, lowered: Lowered, samples: Sequence[Feeds]) -> float:
    """Largest relative difference of the file's outputs from the unpacked graph without optimizations."""
    delivered = Runner(onnx.load_from_string(data))
    plain = Runner(lowered.model, options=session_options(optimize=False))
    worst = 0.0
    for feeds in samples:
        wanted, found = plain.run(feeds), delivered.run(feeds)
        for name, value in wanted.items():
            worst = max(worst, _relative(value, found[name], name))
    return worst


def _relative(wanted: np.ndarray, found: np.ndarray, name: str) -> float:
    if wanted.shape != found.shape or wanted.dtype != found.dtype:
        raise VerificationError(
            f"output {name!r} is {found.dtype}{found.shape} in the file, {wanted.dtype}{wanted.shape} in the graph"
        )
    if wanted.dtype.kind != "f":
        return 0.0
    difference = wanted.astype(np.float64) - found
    power = float(np.sqrt(np.mean(np.square(wanted, dtype=np.float64)))) or 1.0
    relative = float(np.sqrt(np.mean(difference**2))) / power
    if not np.isfinite(found).all() or relative > OUTPUT_TOLERANCE:
        raise VerificationError(
            f"output {name!r} of the file differs from the unpacked graph by {relative:.1%} of its size "
            f"(allowed {OUTPUT_TOLERANCE:.0%})"
        )
    return relative
