"""Convolutions and products of FP8 on tensor cores: tiles, copies and fragments are those of `mma.py`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from ptqc.codegen.cuda import costs
from ptqc.codegen.cuda.isa import BY_ELEMENT
from ptqc.codegen.cuda.mma import Product, stored
from ptqc.codegen.cuda.packed_weights import BYTE, Coding, add_products
from ptqc.codegen.cuda.results import RealResults
from ptqc.codegen.cuda.tiles import Tiles
from ptqc.codegen.cuda.variants import Variant
from ptqc.codegen.kernels.backend import Float8LayerSpec
from ptqc.codegen.kernels.writing import KernelSource
from ptqc.codegen.program.program import SUM_OF_PRODUCTS

CODING = Coding(BYTE)
# Chips of compute capability 8.9 were measured to keep 13 digits of what they sum, of 16 products at a time (Xie et al.
# 2025, MMA-Sim, arXiv 2511.10909). As 32 products at a time are summed there, results are off by less than 2⁻¹² of the
# largest in layers of random numbers, whatever their depth; see the tests.
SUMS = replace(SUM_OF_PRODUCTS, of_chip=2.0**-10)


def variants(layer: Float8LayerSpec) -> Iterator[Variant]:
    """All ways to compute a layer."""
    for tiles in costs.ranked(layer.window, len(layer.weights), CODING, is_float8=True):
        yield Variant(Float8Product.family, tiles, CODING, partial(write, tiles, layer))


def write(tiles: Tiles, layer: Float8LayerSpec) -> KernelSource:
    """One of them."""
    codes = layer.weights
    results = RealResults(layer.y, BY_ELEMENT, len(codes), layer.factor, layer.bias, tuple(layer.stages), SUMS)
    return Float8Product(tiles, CODING, layer.x, results).build(stored(codes.view(np.int8), tiles, CODING))


@dataclass(frozen=True)
class Float8Product(Product):
    """One kernel."""

    family: ClassVar[str] = "float8_mma"
    sum_type: ClassVar[str] = "float32"
    unroll: ClassVar[bool | None] = False  # for 8.9 all steps would be, and registers spilled

    def _add_products(self, sums: Sequence[Any], inputs: Sequence[Any], weights: Sequence[Any]) -> None:
        add_products(sums, inputs, weights)
