"""Every pass of a compile in the order in which it runs: rewrites, then those that measure, then those that fit."""

from collections.abc import Sequence
from typing import Any

from ptqc.passes.base import Rewrite
from ptqc.passes.decide.calibrate import Calibrate
from ptqc.passes.decide.calibrate_inner import CalibrateInner
from ptqc.passes.decide.choose_activations import ChooseActivations
from ptqc.passes.decide.choose_float_roundings import ChooseFloatRoundings
from ptqc.passes.decide.choose_splits import ChooseSplits
from ptqc.passes.decide.measure_curvature import MeasureCurvature
from ptqc.passes.decide.measure_sensitivity import MeasureSensitivity
from ptqc.passes.decide.meet_latency import MeetLatency
from ptqc.passes.decide.meet_memory import MeetMemory
from ptqc.passes.decide.solve_weights import SolveWeights
from ptqc.passes.lower import Lower
from ptqc.passes.rewrite.classical.learners import Classical
from ptqc.passes.rewrite.conv_transpose import ConvTransposeToConv
from ptqc.passes.rewrite.convert_opset import ConvertOpset
from ptqc.passes.rewrite.explicit_axes import ExplicitAxes
from ptqc.passes.rewrite.explicit_padding import ExplicitPadding
from ptqc.passes.rewrite.flatten import Flatten
from ptqc.passes.rewrite.float32_inside import Float32Inside
from ptqc.passes.rewrite.fold_affine import FoldAffine
from ptqc.passes.rewrite.fold_batch_norm import FoldBatchNorm
from ptqc.passes.rewrite.fold_constants import FoldConstants
from ptqc.passes.rewrite.fold_gemm_factors import FoldGemmFactors
from ptqc.passes.rewrite.fold_pad import FoldPad
from ptqc.passes.rewrite.foreign_types import ForeignTypes
from ptqc.passes.rewrite.fused import Fused
from ptqc.passes.rewrite.global_pool import GlobalPool
from ptqc.passes.rewrite.inline_functions import InlineFunctions
from ptqc.passes.rewrite.linear_layers import LinearLayers
from ptqc.passes.rewrite.remove_dead import RemoveDead
from ptqc.passes.rewrite.rotate import Rotate
from ptqc.passes.rewrite.scale_channels import ScaleChannels
from ptqc.passes.rewrite.scale_rows import ScaleRows
from ptqc.passes.rewrite.split_outliers import SplitOutliers
from ptqc.passes.rewrite.standardize import Standardize
from ptqc.passes.rewrite.tied_tables import TiedTables
from ptqc.passes.tune.features import TuneFeatures
from ptqc.passes.tune.reconstruct import Reconstruct

# Offered where channels are uneven, and accepted on held-back samples; ReorderChannels serves what asks for an order.
EVENING: tuple[type[Any], ...] = (Standardize, ScaleChannels, Rotate)
# One of the two that measure is asked for.
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
# The first three where latency, memory or layers in float ask for them; the others for each plan tried within a budget.
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
