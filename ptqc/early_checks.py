"""Requests that cannot be met, refused before anything is measured: too small a budget, operators without kernels."""

from importlib.util import find_spec

from ptqc.artifact.build_target import needed
from ptqc.budget import DROP, Budgets
from ptqc.calibration.inputs import input_specs
from ptqc.calibration.samples import Samples
from ptqc.calibration.synthetic import is_image, spatial_axes
from ptqc.codegen.targets import Chosen
from ptqc.errors import CalibrationError, Infeasible, UsageError
from ptqc.evaluation.detection.detector import Detector
from ptqc.execution.onnxruntime import Runner, tensors_of
from ptqc.losses import recognize
from ptqc.options import CompileOptions
from ptqc.passes.allocate.constraints.criteria import check_unit
from ptqc.passes.allocate.smallest import estimated_size, lower_bound
from ptqc.passes.quantize.prepare import Prepared

NAMED = 5
# Samples whose outputs say what the outputs are.
LOOKED_AT = 8


def check_early(prepared: Prepared, budgets: Budgets, options: CompileOptions, chosen: Chosen | None) -> None:
    """Raises Infeasible for a size that no file of the model has, TargetError for what certainly has no kernel.

    Raises UsageError for a loss in a unit that the outputs are not judged in, for FP8 with a target, and for curvature
    without torch, and CalibrationError for samples on which a detector finds nothing.
    """
    if options.sensitivity == "curvature" and find_spec("torch") is None:
        raise UsageError("sensitivity is 'curvature', which needs PyTorch: pip install 'ptqc[torch]'")
    _check_size(prepared, budgets, options)
    samples, runner = prepared.tuning[:LOOKED_AT], Runner(prepared.model)
    _check_something(runner, samples)
    if budgets.loss is not None:
        outputs = [runner.run(feeds) for feeds in samples]
        check_unit(budgets.loss, recognize(prepared.model, samples[0], outputs, options.loss))
    if chosen is not None and not chosen.may_be_missing:
        if options.in_float8 and not chosen.target.multiplies_float8():
            raise UsageError(
                f"activations is 'float8', for which the target {chosen.name} has no kernels: leave the target out, "
                "and give the ONNX file to a compiler for the hardware that multiplies FP8"
            )
        with needed():
            chosen.target.check_kernels(prepared.model)


def check_detector(prepared: Prepared, detector: Detector | None) -> None:
    """Raises UsageError where the outputs are not as `detector` says, before a compile takes minutes."""
    if detector is None:
        return
    pictured = [spec for spec in input_specs(prepared.model) if is_image(spec)]
    if len(pictured) != 1:
        raise UsageError(f"the model takes {len(pictured)} images, expected one: leave out how it writes boxes")
    feeds = prepared.tuning[0]
    height, width = (feeds[pictured[0].name].shape[axis] for axis in spatial_axes(pictured[0]))
    detector.found(tensors_of(Runner(prepared.model).run(feeds)), (width, height))


def _check_something(runner: Runner, samples: Samples) -> None:
    """Raises CalibrationError where all outputs are empty on all samples: any file would agree with that."""
    names: list[str] = []
    for feeds in samples:
        outputs = tensors_of(runner.run(feeds))
        names = list(outputs)
        if not names or any(array.size for array in outputs.values()):
            return
    raise CalibrationError(
        f"the outputs ({', '.join(names)}) are empty on the first {len(samples)} samples, as of a detector that finds "
        "nothing, so no loss can be measured: check the preprocessing, or give samples with something in them"
    )


def check_score(budgets: Budgets, *scores: object) -> None:
    """Raises UsageError where a budget counts points of a score and none of the ways to get one is given."""
    if budgets.loss is not None and budgets.loss.unit == DROP and not any(score is not None for score in scores):
        raise UsageError(
            f"the budget {budgets.loss} counts points of a score: give --labels DATA, or evaluate in Python"
        )


def _check_size(prepared: Prepared, budgets: Budgets, options: CompileOptions) -> None:
    if budgets.size is None:
        return
    limit = budgets.size.limit(prepared.origin.size, prepared.origin.weights)
    bound = lower_bound(prepared.model, options.bits)
    if limit >= bound.bytes:
        return
    smallest = max(estimated_size(prepared.model, options.bits), bound.bytes)
    named = ", ".join(f"{what} {size:,} B" for what, size in bound.parts[:NAMED])
    raise Infeasible(
        f"the budget of {limit:,} bytes cannot be met: the narrowest codes of all weights alone take {bound.bytes:,} "
        f"bytes. The smallest file has between {bound.bytes:,} and about {smallest:,}; measuring, which a budget from "
        f"{bound.bytes:,} on begins with, tells the exact number. Largest parts: {named}",
        smallest,
        bound.parts,
    )
