"""Number formats, each an object in a file of its own that says all there is to know about it.

Weights: `Format`, listed in `ptqc.formats.families`. Activations: `ActivationFormat`, listed below. To add one, write
its file and list it.
"""

from ptqc.formats.activations import (
    BFLOAT16,
    UINT8,
    ActivationFormat,
    ActivationParams,
    Affine,
    FloatActivation,
    FloatRounding,
    QuantParams,
    Reader,
    coded,
    rounded_to,
    to_bfloat16,
)
from ptqc.formats.base import PORTABLE_BITS, Coded, Format, Grid, Nodes, Scaled, mean_bits, spread
from ptqc.formats.codebook import Codebook
from ptqc.formats.entropy import Entropy
from ptqc.formats.families import FAMILIES, added_family
from ptqc.formats.float8 import FLOAT8, FLOAT8_ACTIVATION, Float8
from ptqc.formats.floats import FLOAT16, FLOAT32, Float
from ptqc.formats.palette import Palette
from ptqc.formats.sparse import Sparse, SparseCodebook, TwoOfFour
from ptqc.formats.trellis import Trellis
from ptqc.formats.uniform import Integer
from ptqc.formats.vector_codebook import VectorCodebook
from ptqc.plugins import PluginKind, usable

__all__ = [
    "BFLOAT16",
    "FLOAT8",
    "FLOAT8_ACTIVATION",
    "FLOAT16",
    "FLOAT32",
    "PORTABLE_BITS",
    "UINT8",
    "ActivationFormat",
    "ActivationParams",
    "Affine",
    "Codebook",
    "Coded",
    "Entropy",
    "Float",
    "Float8",
    "FloatActivation",
    "FloatRounding",
    "Format",
    "Grid",
    "Integer",
    "Nodes",
    "Palette",
    "QuantParams",
    "Reader",
    "Scaled",
    "Sparse",
    "SparseCodebook",
    "Trellis",
    "TwoOfFour",
    "VectorCodebook",
    "coded",
    "mean_bits",
    "rounded_to",
    "spread",
    "to_bfloat16",
]

ActivationFormat.known = (UINT8, BFLOAT16, FLOAT8_ACTIVATION)
# Last, since what packages add imports what is above.
Format.families = (*FAMILIES, *usable(PluginKind.FORMAT, added_family))
