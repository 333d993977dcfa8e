"""The checks that a written file passes before it is delivered.

Size; checker; inputs and outputs as in the model; census: every node that the plan makes integer is an integer kernel;
stored: every weight is, bit by bit, what was tuned, in the format of the plan; parity: every kernel, given the integers
that ONNX Runtime gave it, yields exactly the reference's integers; intent: every operator, kernels and others, gives up
to rounding what the plan asks of it; agreement of the outputs with the unpacked graph run without any optimization.
"""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from ptqc.codegen.onnxruntime import verify_integer_kernels, weight_check
from ptqc.codegen.onnxruntime.census import Census, take
from ptqc.codegen.onnxruntime.export import Exported
from ptqc.codegen.onnxruntime.matmul_nbits import without_rounding
from ptqc.codegen.onnxruntime.verify_semantics import Intent
from ptqc.errors import VerificationError
from ptqc.execution.agreement import Difference, alike, allowed
from ptqc.execution.onnxruntime import Feeds, Runner, is_lean, open_packed, session_options, tensors_of
from ptqc.execution.skeleton import without_tensors
from ptqc.formats import FloatActivation
from ptqc.ir import protos, zipmaps
from ptqc.ir.integer_arithmetic import quantize
from ptqc.ir.lowered import Lowered
from ptqc.ir.plan import Plan
from ptqc.ir.references import has_references
from ptqc.kv_cache.marks import forms_given
from ptqc.kv_cache.values import unpacked_feeds


@dataclass(frozen=True)
class Verified:
    """What was checked and found."""

    operators: Mapping[str, int]
    integer_nodes: int
    kernels_compared: int
    codes_compared: int
    kernels_as_planned: int
    operators_as_planned: int
    weights_as_tuned: int
    output_difference: float
    load_seconds: float

    def to_json(self) -> dict[str, Any]:
        """The document for the manifest: everything but the time."""
        document = asdict(self)
        del document["load_seconds"]
        return document


def verify(
    exported: Exported,
    lowered: Lowered,
    intent: Intent,
    samples: Sequence[Feeds],
    limit: int | None,
) -> Verified:
    """Run all checks. Raises VerificationError naming the first check that fails."""
    if limit is not None and exported.size > limit:
        raise VerificationError(f"the file has {exported.size:,} bytes, over the budget of {limit:,}")
    _check(exported.proto)
    _same_interface(exported.proto, intent.model)
    _same_decisions(lowered, intent.plan)
    census, seconds = _census(exported, lowered, intent.plan, lean=is_lean(exported.proto, intent.model))
    weights = weight_check.check(exported, lowered, intent)
    kernels, codes = verify_integer_kernels.compare(exported.proto, lowered, samples[:1], exported.renamed)
    rough = frozenset(settled for product in exported.blocks.values() for settled in _settled(product.output, intent))
    operators = _as_planned(exported, lowered, replace(intent, rough=rough), samples[0])
    difference = _agreement(_exact(exported), lowered, intent.model, samples)
    integer = len(intent.plan.integer)
    return Verified(census.operators, integer, kernels, codes, integer, operators, weights, difference, seconds)


def _settled(output: str, intent: Intent) -> set[str]:
    """A layer's output, and what an activation that is absorbed makes of it."""
    return {output, *(layer.settled for layer in intent.plan.layers if layer.name == output)}


def _check(proto: onnx.ModelProto) -> None:
    try:
        onnx.checker.check_model(without_tensors(proto) if has_references(proto) else proto)
    except onnx.checker.ValidationError as error:
        raise VerificationError(f"the written file does not pass the ONNX checker: {error}") from error


def _census(exported: Exported, lowered: Lowered, plan: Plan, *, lean: bool) -> tuple[Census, float]:
    """lean: load the file without unpacking its weights, where nothing is on integer kernels."""
    expected = {}
    for name, kernel in plan.integer.items():
        value = lowered.codes.get(name) or lowered.codes.get(kernel.output, kernel.output)
        expected[name] = (kernel.op_type, exported.renamed[value])
    started = time.monotonic()
    try:
        census = take(exported.proto, expected, lean=lean)
    except OSError:  # of the disk, not of the file
        raise
    except Exception as error:  # ONNX Runtime raises a dozen types of its own
        raise VerificationError(f"ONNX Runtime {ort.__version__} cannot load the written file: {error}") from error
    if census.missed:
        name, found = next(iter(census.missed.items()))
        raise VerificationError(
            f"{len(census.missed)} of {len(expected)} planned integer nodes run in float, first {name} (as {found})"
        )
    return census, time.monotonic() - started


def _same_interface(proto: onnx.ModelProto, model: ir.Model) -> None:
    wanted, found, maps = protos.interface(model), proto.graph, zipmaps.remembered(model)
    outputs = [zipmaps.as_given(value, maps) for value in wanted.output]
    for given, kept in ((list(wanted.input), found.input), (outputs, found.output)):
        if given != list(kept):
            names = ", ".join(value.name for value in kept)
            raise VerificationError(f"the file's interface ({names}) is not that of the model")
    if (labels := zipmaps.labels(found)) != maps:
        raise VerificationError(f"the class labels in the file's maps ({labels}) are not those of the model ({maps})")


def _same_decisions(lowered: Lowered, plan: Plan) -> None:
    """What is quantized and what computes on integers is what the plan says."""
    quantized = lowered.codes.keys() - {name for name, kernel in plan.integer.items() if kernel.output != name}
    decisions = (
        ("quantized", quantized, plan.params),
        ("integer", lowered.integer, plan.integer),
        ("rounded", _told(lowered.cast), _told(plan.cast)),
    )
    for what, done, planned in decisions:
        if different := sorted(set(done) ^ set(planned)):
            raise VerificationError(f"{', '.join(different[:5])}: {what} in the file or in the plan, but not in both")


def _told(cast: Mapping[str, FloatActivation]) -> set[str]:
    return {f"{tensor} to {form}" for tensor, form in cast.items()}


def _as_planned(exported: Exported, lowered: Lowered, intent: Intent, feeds: Feeds) -> int:
    """Operators that give what the plan asks of them, which must be all."""
    renamed, params = exported.renamed, intent.plan.params
    values = {name: renamed[codes] for name in params if (codes := lowered.codes[name]) in renamed}
    values |= {name: renamed[name] for name in intent.floating() if name in renamed}
    # A graph output that is rounded is made under another name.
    before = {name: lowered.before_rounding(name) for name in intent.rounded()}
    reals = {name: renamed.get(real, renamed[name]) for name, real in before.items()}
    taps = sorted({*values.values(), *reals.values()} - feeds.keys())
    found = {
        **feeds,
        **(Runner(exported.proto, taps, lean=is_lean(exported.proto, intent.model)).run(feeds, taps) if taps else {}),
    }
    # Where only pools in float read a tensor, the file does not have its codes.
    implied = {name: quantize(found[short], params[name]) for name, short in reals.items() if name not in values}
    return intent.check(
        {name: found[short] for name, short in values.items()} | implied,
        {name: found[short] for name, short in reals.items() if name in values},
    )


def _exact(exported: Exported) -> onnx.ModelProto:
    """The file, whose products in blocks do not round what they read: that is no error of the file.

    How much they round is held to its limit product by product.
    """
    if not exported.blocks:
        return exported.proto
    return without_rounding(exported.proto, {exported.renamed[each.product] for each in exported.blocks.values()})


def _agreement(file: onnx.ModelProto, lowered: Lowered, model: ir.Model, samples: Sequence[Feeds]) -> float:
    """Relative difference of the file's outputs from the unpacked graph without optimizations, over all samples."""
    delivered, plain, real = (
        open_packed(file, model),
        Runner(lowered.model, options=session_options(optimize=False), lean=is_lean(file, model)),
        Runner(model),
    )
    worst, forms = 0.0, forms_given(model)
    quantized, packed = defaultdict[str, Difference](Difference), defaultdict[str, Difference](Difference)
    for feeds in samples:
        outputs = [tensors_of(runner.run(feeds)) for runner in (real, plain, delivered)]
        for name, array in outputs[1].items():
            _same_kind(array, outputs[2][name], name)
        given, wanted, found = (unpacked_feeds(each, forms) for each in outputs)
        for name in (name for name, array in wanted.items() if array.dtype.kind == "f"):
            quantized[name].add_to_float(given[name], wanted[name])
            packed[name].add(wanted[name], found[name])
    for name, compared in packed.items():
        tolerance, difference = allowed(quantized[name].relative), compared.relative
        if not difference <= tolerance:  # NaN included
            raise VerificationError(
                f"output {name!r} of the file differs from the unpacked graph by {difference:.1%} of its size "
                f"(allowed here {tolerance:.1%})"
            )
        worst = max(worst, difference)
    return worst


def _same_kind(wanted: np.ndarray, found: np.ndarray, name: str) -> None:
    if not alike(wanted, found):
        raise VerificationError(
            f"output {name!r} is {found.dtype}{found.shape} in the file, {wanted.dtype}{wanted.shape} in the graph"
        )
