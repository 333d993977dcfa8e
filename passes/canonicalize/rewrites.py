"""Every rewrite, in the order in which they run."""

from collections.abc import Sequence

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
from ptqc.passes.canonicalize.split_products import SplitProducts
from ptqc.passes.canonicalize.tied_tables import TiedTables


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
        SplitProducts(),
        *added,
        RemoveDead(),
    )
