"""Every pass of a compile, in the order in which they run.

Each step, and the file that holds it:

    canonicalization                     canonicalize/, a file for each rewrite
    packed caches of keys and values     kv_cache/apply.py
    channel equalization                 equalize/equalize_channels.py: scale_channels.py, rotate.py, standardize.py
    channel reordering                   equalize/reorder_channels.py
    outlier channels split off           equalize/split.py, quantize/choose_splits.py
    calibration                          quantize/calibrate.py
    per-layer error minimization         quantize/solve_weights.py: gptq.py on the second moments of moments.py
    sensitivity of the outputs           quantize/measure_sensitivity.py, or measure_curvature.py
    choice of integer activations        allocate/choose_activations.py
    integer-programming bit allocation   allocate/allocation.py, solved by ptqc/solver/integer_program.py
    budgets of time, memory and loss     allocate/constraints/
    bias correction                      reconstruct/bias_correction.py, layer after layer in reconstruct.py
    gradient steps on scales and biases  reconstruct/gradients.py (advanced)
    lowering to integer kernels          allocate/lower.py

Up to the choice of activations nothing depends on a budget, and everything is measured once. `ptqc/compiler.py` runs
the passes; `ptqc passes` lists them with their options.
"""

from collections.abc import Sequence
from typing import Any

from ptqc.passes.allocate.choose_activations import ChooseActivations, ChooseFloatRoundings
from ptqc.passes.allocate.lower import Lower
from ptqc.passes.allocate.meet_latency import MeetLatency
from ptqc.passes.allocate.meet_memory import MeetMemory
from ptqc.passes.base import Rewrite
from ptqc.passes.canonicalize.classical import Classical
from ptqc.passes.canonicalize.conv_transpose import ConvTransposeToConv
from ptqc.passes.canonicalize.convert_opset import ConvertOpset
from ptqc.passes.canonicalize.explicit_axes import ExplicitAxes
from ptqc.passes.canonicalize.explicit_padding import ExplicitPadding
from ptqc.passes.canonicalize.flatten import Flatten
from ptqc.passes.canonicalize.float32_inside import Float32Inside
from ptqc.passes.canonicalize.fold_affine import FoldAffine
from ptqc.passes.canonicalize.fold_batch_norm import FoldBatchNorm
from ptqc.passes.canonicalize.fold_constants import FoldConstants
from ptqc.passes.canonicalize.fold_gemm_factors import FoldGemmFactors
from ptqc.passes.canonicalize.fold_pad import FoldPad
from ptqc.passes.canonicalize.foreign_types import ForeignTypes
from ptqc.passes.canonicalize.fused import Fused
from ptqc.passes.canonicalize.global_pool import GlobalPool
from ptqc.passes.canonicalize.inline_functions import InlineFunctions
from ptqc.passes.canonicalize.linear_layers import LinearLayers
from ptqc.passes.canonicalize.remove_dead import RemoveDead
from ptqc.passes.canonicalize.tied_tables import TiedTables
from ptqc.passes.equalize.outliers import ScaleRows, SplitOutliers
from ptqc.passes.equalize.rotate import Rotate
from ptqc.passes.equalize.scale_channels import ScaleChannels
from ptqc.passes.equalize.standardize import Standardize
from ptqc.passes.quantize.calibrate import Calibrate, CalibrateInner
from ptqc.passes.quantize.choose_splits import ChooseSplits
from ptqc.passes.quantize.measure_curvature import MeasureCurvature
from ptqc.passes.quantize.measure_sensitivity import MeasureSensitivity
from ptqc.passes.quantize.solve_weights import SolveWeights
from ptqc.passes.reconstruct.features import TuneFeatures
from ptqc.passes.reconstruct.reconstruct import Reconstruct

# Channel equalization: offered where channels are uneven, and accepted on held-back samples. ReorderChannels serves
# formats that ask for an order.
EVENING: tuple[type[Any], ...] = (Standardize, ScaleChannels, Rotate)
# Calibration, per-layer error minimization and sensitivity, whatever the budgets: measured in one way or the other.
MEASURING: tuple[type[Any], ...] = (
    ChooseSplits,
    SplitOutliers,
    ScaleRows,
    Calibrate,
    CalibrateInner,
    SolveWeights,
    MeasureSensitivity,
    MeasureCurvature,
    ChooseActivations,
)
# Bit allocation and reconstruction: the first three where latency, memory or layers in float ask for them, the others
# for each plan that is tried within a budget.
FITTING: tuple[type[Any], ...] = (MeetLatency, MeetMemory, ChooseFloatRoundings, Reconstruct, TuneFeatures, Lower)


def default_rewrites(cast_double: bool = False, added: Sequence[Rewrite] = ()) -> tuple[Rewrite, ...]:
    """Every rewrite, in the order in which each finds what it needs.

    cast_double: whether float64 becomes float32 inside. added: those of other packages, which see the normal form.
    Normal forms first. Pads go before batch normalization, which then sees whether the convolution behind it pads;
    transposed convolutions last, since what follows them folds into them but not into a DepthToSpace.
    """
    return (
        InlineFunctions(),
        ConvertOpset(),
        Float32Inside(cast_double),
        ForeignTypes(),
        Classical(),
        Fused(),
        FoldConstants(),
        TiedTables(),
        ExplicitAxes(),
        ExplicitPadding(),
        GlobalPool(),
        Flatten(),
        FoldGemmFactors(),
        LinearLayers(),
        FoldPad(),
        FoldBatchNorm(),
        FoldAffine(),
        ConvTransposeToConv(),
        *added,
        RemoveDead(),
    )
