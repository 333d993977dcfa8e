"""A convolution or product of codes, as every kernel for one takes it."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ptqc.codegen.cuda.isa import BY_ELEMENT
from ptqc.codegen.cuda.packed_weights import Coding, PairCoding
from ptqc.codegen.cuda.results import CodedResults
from ptqc.codegen.kernels.backend import LayerSpec

# Bits of a code that pairs have to save.
WORTH = 2


@dataclass(frozen=True, eq=False)
class CodedLayer(LayerSpec):
    """A layer with what its kernels have in common."""

    @cached_property
    def codes(self) -> np.ndarray:
        """The weights in int8."""
        return self.weights.astype(np.int8, copy=False)

    @cached_property
    def coding(self) -> Coding | PairCoding:
        """The way to pack the codes that takes fewer bits, where looking up pairs is worth it."""
        alone, pairs = Coding.of(self.codes, self.codes[0].size), PairCoding.of(self.codes)
        return pairs if pairs is not None and pairs.bits + WORTH <= alone.bits else alone

    @property
    def results(self) -> CodedResults:
        """What becomes of its sums."""
        return CodedResults(self.y, BY_ELEMENT, len(self.weights), self.requantization, self.epilogue)
