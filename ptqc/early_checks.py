"""Requests that cannot be met, refused before anything is measured: too small a budget, operators without kernels."""

from importlib.util import find_spec

import onnxruntime as ort

from ptqc.artifact.build_target import needed
from ptqc.calibration.inputs import input_specs
from ptqc.calibration.samples import Samples
from ptqc.calibration.synthetic import is_image, spatial_axes
from ptqc.codegen.onnxruntime.matmul_nbits import BLOCK_PRODUCTS, FUSED_FROM, DequantizedProduct
from ptqc.codegen.targets import Chosen, StreamTarget
from ptqc.errors import CalibrationError, UsageError
from ptqc.evaluation.detection.detector import Detector
from ptqc.execution.onnxruntime import Runner, release, tensors_of
from ptqc.formats import Format
from ptqc.formats.trellis import Trellis, path_search
from ptqc.ir.layers import find_layers, find_weights
from ptqc.options import CompileOptions
from ptqc.passes.allocate.state import Budgets
from ptqc.passes.quantize.prepare import CanonicalModel

# Samples of which at least one has to give an output with something in it.
SAMPLES_RUN = 8


def check_early(prepared: CanonicalModel, budgets: Budgets, options: CompileOptions, chosen: Chosen | None) -> None:
    """Raises Infeasible for a size that no file of the model has, TargetError for what certainly has no kernel.

    Raises UsageError for a loss in a unit that the outputs are not judged in, for FP8 with a target, for curvature
    without torch, for trellis codes without Numba, for widths that no format asked for has, for operators that the
    installed ONNX Runtime does not fuse, and CalibrationError for samples on which a detector finds nothing.
    """
    if options.sensitivity == "curvature" and find_spec("torch") is None:
        raise UsageError("sensitivity is 'curvature', which needs PyTorch: pip install 'ptqc[torch]'")
    _check_formats(options)
    _check_operators(options)
    if find_weights(prepared.model, find_layers(prepared.model)):  # else nothing depends on the loss
        _check_something(Runner(prepared.model), prepared.tuning.some(SAMPLES_RUN))
    for constraint in budgets:
        constraint.check(prepared, options)
    if chosen is not None and not chosen.may_be_missing:
        if options.in_float8 and not chosen.target.multiplies_float8():
            raise UsageError(
                f"activations is 'float8', for which the target {chosen.name} has no kernels: leave the target out, "
                "and give the ONNX file to a compiler for the hardware that multiplies FP8"
            )
        with needed(chosen):
            chosen.target.check_kernels(prepared.model)
            if isinstance(chosen.target, StreamTarget):
                chosen.target.check_frames(prepared.model, prepared.tuning[0], chosen.options)


def _check_formats(options: CompileOptions) -> None:
    """Raises UsageError for trellis codes without Numba, and where the families asked for have none of the widths."""
    families = [family for family in Format.families if family.family in options.formats]
    if Trellis in families:
        path_search()
    if families and not any(family.offered(options.bits) for family in families):
        widths = ", ".join(map(str, options.bits))
        have = ", ".join(str(form) for family in families for form in family.members())
        raise UsageError(
            f"none of the formats asked for has {widths} bits: there are {have}; give other bits or formats"
        )


def _check_operators(options: CompileOptions) -> None:
    """Raises UsageError where the installed ONNX Runtime does not keep weights of standard operators packed."""
    is_fused = BLOCK_PRODUCTS.get(options.operators) is DequantizedProduct
    if is_fused and release(ort.__version__) < release(FUSED_FROM):
        raise UsageError(
            f"operators is {options.operators!r}, which needs ONNX Runtime {FUSED_FROM} or newer to keep weights "
            f"packed, and {ort.__version__} is installed: pip install -U onnxruntime, or give operators 'onnxruntime' "
            "or 'standard'"
        )


def check_detector(prepared: CanonicalModel, detector: Detector | None) -> None:
    """Raises UsageError where the outputs are not as `detector` says, before a compile takes minutes."""
    if detector is None:
        return
    pictured = [spec for spec in input_specs(prepared.model) if is_image(spec)]
    if len(pictured) != 1:
        raise UsageError(f"the model takes {len(pictured)} images, expected one: leave out how it writes boxes")
    feeds = prepared.tuning[0]
    height, width = (feeds[pictured[0].name].shape[axis] for axis in spatial_axes(pictured[0]))
    detector.decode(tensors_of(Runner(prepared.model).run(feeds)), (width, height))


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
