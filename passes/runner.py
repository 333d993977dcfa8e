"""Running rewrites, and the check after each: the model stays valid and computes the same function."""

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common

from ptqc.errors import ModelError, PassError
from ptqc.execution.onnxruntime import Runner, reason_of, session_options
from ptqc.ir.external import spill
from ptqc.ir.operators import Trait, named
from ptqc.notes import Level, Note
from ptqc.passes.base import Feeds, Probed, Rewrite
from ptqc.passes.canonicalize.float32_inside import HALF, Float32Inside, Types, computing, names_type
from ptqc.passes.canonicalize.inline_functions import InlineFunctions
from ptqc.passes.canonicalize.tools import rounded_otherwise
from ptqc.passes.dump import NO_DUMP, Dump

Outputs = dict[str, np.ndarray]
Interface = list[tuple[str | None, str, str]]

# How far outputs may differ, as a share of their largest magnitude; more where sums of over LONG_SUM terms reorder.
TOLERANCE = 1e-5
LONG_SUM = 1000
LONG_SUM_TOLERANCE = 1e-4
# The same against a model in half precision, which rounds every inner value where float32 does not, or in float64.
OTHER_TOLERANCE = {ir.DataType.FLOAT16: 2e-2, ir.DataType.BFLOAT16: 1e-1, ir.DataType.DOUBLE: 1e-4}
PRODUCTS = named(Trait.PRODUCT)
ALLOWANCE = 1e-6  # absolute, for outputs that are zero but for rounding
# From this opset on exporters write a whole attention as one operator, not every form of which ONNX Runtime runs.
NEWEST = 23
REWRITTEN = "export it with opset 22 or lower, where its newest operators are written as older ones"
RUN_IT = "run it in ONNX Runtime on a sample, and fix the model or the samples"
# A difference of so many times what rounding the weights makes is allowed: folding rounds them several times.
ROUNDINGS = 16


def in_float32(model: ir.Model, *, double: bool = True) -> ir.Model:
    """A copy of a model that computes nothing in half precision, nor, if `double`, in float64.

    Its interface is the same.
    """
    copy = model.clone()
    run_rewrites(copy, (InlineFunctions(), Float32Inside(double=double)), [])
    return copy


def run_rewrites(
    model: ir.Model,
    passes: Sequence[Rewrite],
    probe: Sequence[Feeds],
    progress: Callable[[str], None] | None = None,
    dump: Dump = NO_DUMP,
) -> list[Note]:
    """Apply the passes to the model in place, holding each to its promise on the probe feeds.

    progress: called with the name of each pass before it runs.
    dump: gets the model after each pass.
    Raises PassError, which names the pass, the output and the difference.
    """
    report = progress or (lambda message: None)  # noqa: ARG005
    probed = Probed(model, probe)
    guard = _Guard(model, probe, _to_float32(passes))
    notes = list(guard.notes)
    for rewrite in passes:
        report(rewrite.name)
        result = rewrite.apply(probed)
        notes += result.notes
        if result.changed:
            spill(model)
            guard.check(rewrite.name, model)
        dump.model(rewrite.name, model)
    return notes


class _Guard:
    """The model's outputs and interface before any pass, to compare with."""

    def __init__(self, model: ir.Model, probe: Sequence[Feeds], to_float32: Types) -> None:
        self.notes: list[Note] = []
        self.probe = probe
        self.interface = _interface(model)
        self.to_float32 = to_float32
        self.other = other_type(model, to_float32)
        self.tolerance = LONG_SUM_TOLERANCE if longest_sum(model) > LONG_SUM else TOLERANCE
        self.reference: list[Outputs] | None = None
        self._original = model.clone()
        try:
            self.reference = _outputs(model, self.probe)
        except Exception as error:  # ONNX Runtime raises a dozen types of its own
            if self.other is None:
                advice = REWRITTEN if model.graph.opset_imports[""] >= NEWEST else RUN_IT
                reason = reason_of(error)
                raise ModelError(
                    f"ONNX Runtime cannot run the model on the probe samples: {reason}; {advice}"
                ) from error
            message = f"ONNX Runtime cannot run the {self.other.name} model itself: compared from float32 on"
            self.notes.append(Note("pipeline", "", message, Level.WARNING))

    def check(self, name: str, model: ir.Model) -> None:
        """Raise PassError unless the changed model is valid and still computes the reference."""
        if _interface(model) != self.interface:
            raise PassError(f"{name} changed the model's inputs or outputs: {self.interface} to {_interface(model)}")
        is_cast = self.other is not None and other_type(model, self.to_float32) is None
        try:
            common.CheckerPass()(model)
            outputs = _outputs(model, self.probe)
        except Exception as error:  # whatever the checker or the runtime says
            if is_cast or name == Float32Inside.name:
                raise ModelError(f"the model cannot run in float32: {error}; export it in float32") from error
            if self.reference is None:  # it did not run before either
                return
            raise PassError(f"{name} left a model that does not check or run: {error.__cause__ or error}") from error
        if self.reference is not None:
            self._compare(name, self.reference, outputs)
        if is_cast:
            self.other, self.reference = None, outputs

    def _compare(self, name: str, reference: list[Outputs], outputs: list[Outputs]) -> None:
        if self.other is None:
            try:
                _compare(name, reference, outputs, self.tolerance)
            except PassError:
                _compare(name, reference, outputs, self.tolerance, self._rounded)
            return
        try:
            _compare(name, reference, outputs, OTHER_TOLERANCE[self.other])
        except PassError as error:
            if self.other != ir.DataType.DOUBLE:
                raise
            raise ModelError(f"the model needs float64: {error}; it cannot be compiled") from error

    @cached_property
    def _rounded(self) -> list[Outputs]:
        """Outputs of the model with its weights rounded otherwise."""
        return _outputs(rounded_otherwise(self._original), self.probe)


def _to_float32(passes: Sequence[Rewrite]) -> Types:
    """The types that one of the passes turns into float32."""
    return next((rewrite.types for rewrite in passes if isinstance(rewrite, Float32Inside)), HALF)


def _interface(model: ir.Model) -> Interface:
    values = (*model.graph.inputs, *model.graph.outputs)
    constants = {name for name, value in model.graph.initializers.items() if value.is_graph_input()}
    return [(value.name, str(value.type), str(value.shape)) for value in values if value.name not in constants]


def _outputs(model: ir.Model, probe: Sequence[Feeds]) -> list[Outputs]:
    if not probe:
        return []
    runner = Runner(model, options=session_options(optimize=False))
    names = set(runner.inputs)
    return [runner.run({name: array for name, array in feeds.items() if name in names}) for feeds in probe]


def longest_sum(model: ir.Model) -> int:
    """Terms of the longest sum that a constant weight enters."""
    longest = 0
    for node in model.graph.all_nodes():
        if node.op_type in PRODUCTS and len(node.inputs) > 1:
            weight = node.inputs[1]
            sizes = weight.shape if weight is not None and weight.shape is not None else ()
            known = [size for size in sizes if isinstance(size, int) and size > 0]
            longest = max(longest, int(np.prod(known)) // min(known, default=1))
    return longest


def other_type(model: ir.Model, types: Types) -> ir.DataType | None:
    """Which of the types the model computes in; inputs, outputs and the Casts beside them do not count.

    Inner values seldom have a stated type, so that what brings a type in counts: constants, Casts, inputs.
    """
    brought = {value.dtype for graph in model.graphs() for value in graph.initializers.values()}
    inside = (node for function in model.functions.values() for node in function.all_nodes())
    for node in chain(computing(model), inside):
        is_cast, attributes = node.op_type == "Cast", [one for one in node.attributes.values() if not one.is_ref()]
        brought |= {one.as_tensor().dtype for one in attributes if one.type == ir.AttributeType.TENSOR}
        if not (is_cast and node.outputs[0].is_graph_output()):
            brought |= {ir.DataType(one.as_int()) for one in attributes if names_type(one)}
        if not is_cast:
            brought |= {value.dtype for value in (*node.inputs, *node.outputs) if value is not None}
    return next((dtype for dtype in types if dtype in brought), None)


def _compare(
    name: str,
    reference: Sequence[Outputs],
    outputs: Sequence[Outputs],
    tolerance: float,
    rounded: Sequence[Outputs] | None = None,
) -> None:
    """Raises PassError. rounded: outputs that differ from the reference by rounding alone, to allow for that."""
    for sample, (expected, result, other) in enumerate(zip(reference, outputs, rounded or reference, strict=True)):
        for output, array in expected.items():
            fault = _difference(array, result[output], tolerance, other[output])
            if fault is not None:
                raise PassError(f"{name} changed output {output!r} on probe sample {sample}: {fault}")


def _difference(expected: np.ndarray, array: np.ndarray, tolerance: float, rounded: np.ndarray) -> str | None:
    """What is wrong with the found array, None if nothing is. rounded: the expected array but for rounding."""
    if not isinstance(expected, np.ndarray):  # sequences and optionals
        return None if str(expected) == str(array) else "another sequence"
    if expected.shape != array.shape or expected.dtype != array.dtype:
        return f"expected {expected.dtype}{list(expected.shape)}, found {array.dtype}{list(array.shape)}"
    if expected.dtype.kind != "f":
        wrong = int(np.count_nonzero(expected != array))
        allowed = ROUNDINGS * int(np.count_nonzero(expected != rounded))
        return f"{wrong} of {expected.size} values differ" if wrong > allowed else None
    finite = expected[np.isfinite(expected)]
    tolerance = max(tolerance, 2 * float(np.finfo(expected.dtype).eps))  # half-precision outputs are rounded
    limit = tolerance * float(np.max(np.abs(finite), initial=0.0)) + ALLOWANCE
    noise = _largest_gap(expected, rounded)
    limit = max(limit, ROUNDINGS * noise if np.isfinite(noise) else 0.0)
    largest = _largest_gap(expected, array)
    return f"differs by {largest:.3g}, allowed {limit:.3g}" if largest > limit else None


def _largest_gap(expected: np.ndarray, array: np.ndarray) -> float:
    """Between elements; infinite where only one of two is NaN."""
    same = (expected == array) | (np.isnan(expected) & np.isnan(array))
    with np.errstate(invalid="ignore"):
        gap = np.where(same, 0.0, np.abs(expected.astype(np.float64) - array.astype(np.float64)))
    return float(np.max(np.where(np.isnan(gap), np.inf, gap), initial=0.0))
