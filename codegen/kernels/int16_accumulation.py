"""How many products of bytes an instruction set may add in 16 bits: what decides is how large the weights are.

A product instruction adds two neighbouring products, each of an 8-bit code and a weight. Weights of 8 bits can
overflow that sum, unless no pair of them is large, or inputs are signed bytes and weights are within ±127; else they
are split in two halves. Small weights leave room for many such sums. Twice as many as the largest weight allows hardly
ever overflow, as few weights are large: the kernel is told where they would.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from ptqc.codegen.kernels.isa import Isa
from ptqc.formats.safe import saturates

LARGEST_CODE, LARGEST_SUM, PAIR = 255, 32767, 2
# Widening is nearly free by then. What a chain reads past the end of a run stays within a buffer's slack.
LONGEST = 16


@dataclass(frozen=True)
class Int16Accumulation:
    """parts: into which a weight is split. chain: vectors of products that are added before they are widened.

    safe: how many of them never overflow.
    """

    parts: int = 1
    chain: int = 1
    safe: int = 1

    @classmethod
    def of(cls, isa: Isa, weights: np.ndarray) -> Self:
        """The way of adding that these weights allow: (outputs, inputs of a group, …)."""
        if not isa.in_words:
            return cls()
        reach = max(1, -int(weights.min(initial=0)), int(weights.max(initial=0)))
        safe = min(LARGEST_SUM // (PAIR * isa.largest_input * reach), LONGEST)
        if safe == 0:
            return cls() if _has_safe_pairs(weights) else cls(parts=2)
        # Products with signed inputs reach the limits whatever the signs of weights are: twice as many often overflow.
        return cls(chain=safe if isa.signed_inputs else min(2 * safe, LONGEST), safe=safe)

    @property
    def all_safe(self) -> Self:
        """The same for weights with which no chain overflows."""
        return replace(self, safe=self.chain)

    def links(self, units: int) -> tuple[int, int]:
        """Chains that cover so many vectors of products, and the length of each."""
        count = -(-units // self.chain)
        return count, -(-units // count)


def _has_safe_pairs(weights: np.ndarray) -> bool:
    """Whether no pair overflows; of inputs that are whole pairs, so that they are the pairs of the kernel."""
    return weights.ndim > 1 and weights.shape[1] % PAIR == 0 and not saturates(weights, 0)


def suited(isa: Isa, weights: np.ndarray) -> Isa:
    """The instruction set with signed inputs, where only that leaves weights whole."""
    in_halves = Int16Accumulation.of(isa, weights).parts > 1
    others = [isa.signed] if isa.signed is not None and in_halves else []
    return next((other for other in others if Int16Accumulation.of(other, weights).parts == 1), isa)


def overflows(weights: np.ndarray) -> np.ndarray:
    """Whether codes can make a sum overflow: int8 weights (…, vectors of a chain, lanes, PAIR) give (…, lanes)."""
    most, least = (limited(weights, 0).sum((-3, -1), dtype=np.int32) for limited in (np.maximum, np.minimum))
    return np.asarray(np.maximum(most, -least) * LARGEST_CODE > LARGEST_SUM)


IN_INT32 = Int16Accumulation()
