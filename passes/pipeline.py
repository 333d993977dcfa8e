"""Every pass of a compile, in the order in which they run.

Each step, and the file that holds it:

    packed caches of keys and values     kv_cache/apply.py
    canonicalization                     canonicalize/, a file for each rewrite, listed in rewrites.py
    channel equalization                 equalize/equalize_channels.py: standardize.py, scale_channels.py, rotate.py
    channel reordering                   equalize/order_for_pruning.py, by reorder_channels.py
    outlier channels split off           equalize/split.py, quantize/choose_splits.py
    calibration                          quantize/calibrate.py
    per-layer error minimization         quantize/solve_weights.py: gptq.py on the second moments of moments.py
    sensitivity of the outputs           quantize/measure_sensitivity.py, or measure_curvature.py
    choice of integer activations        allocate/choose_activations.py
    integer-programming bit allocation   allocate/allocation.py, solved by ptqc/solver/integer_program.py
    budgets of time, memory and loss     allocate/constraints/
    layer-wise reconstruction            reconstruct/reconstruct.py, layer after layer: layer_problem.py
    bias correction                      reconstruct/bias_correction.py
    gradient steps on scales and biases  reconstruct/gradients.py (advanced)
    lowering to integer kernels          allocate/lower.py
    fallback: rounding to nearest        allocate/simplest.py, where it loses less at the same bytes

Up to the choice of activations, everything is measured once and kept in the store (`analyze.py`). Only a budget of
caches, and one of size that leaves no room for splits, change it. Then `allocate/meet_budgets.py` runs the passes.
`ptqc passes` lists them with their options.
"""

from typing import Any

from ptqc.passes.allocate.choose_activations import ChooseActivations, ChooseFloatRoundings
from ptqc.passes.allocate.constraints.latency import MeetLatency
from ptqc.passes.allocate.constraints.memory import MeetMemory
from ptqc.passes.allocate.lower import Lower
from ptqc.passes.equalize.outliers import ScaleRows, SplitOutliers
from ptqc.passes.equalize.reorder_channels import ReorderChannels
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

# Channel equalization: offered where channels are uneven, and accepted on held-back samples. Channel
# reordering: where weights are pruned to 2:4.
EQUALIZATION: tuple[type[Any], ...] = (Standardize, ScaleChannels, Rotate, ReorderChannels)
# Calibration, per-layer error minimization and sensitivity, whatever the budgets: measured in one way or the other.
ANALYSIS: tuple[type[Any], ...] = (
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
ALLOCATION: tuple[type[Any], ...] = (MeetLatency, MeetMemory, ChooseFloatRoundings, Reconstruct, TuneFeatures, Lower)
