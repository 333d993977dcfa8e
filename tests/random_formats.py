"""Formats for the weights of random networks."""

import numpy as np
import onnx_ir as ir

from ptqc.formats import Codebook, Entropy, Format, Integer, Sparse, SparseCodebook, Trellis, TwoOfFour, VectorCodebook
from ptqc.ir.layers import Weight
from ptqc.ir.nodes import constant
from ptqc.passes.quantize.solve_weights import possible


def prune(weight: ir.Value, random: np.random.Generator) -> None:
    """Make zeros of some of the numbers, of few or of all but a few."""
    values = constant(weight)
    assert values is not None
    kept = random.random(values.shape) >= random.random()
    weight.const_value = ir.tensor(np.asarray(values * kept, np.float32), name=weight.name)


def format_of(weight: Weight, random: np.random.Generator) -> Format:
    """A format that the weight can have: pairs are neighbours in a channel, fours are inputs."""
    forms: list[Format] = [Integer(int(random.integers(2, 9))), Codebook(int(random.integers(2, 5))), Entropy(8)]
    forms += [Sparse(int(random.integers(1, 7))), SparseCodebook(int(random.integers(2, 5)))]
    if weight.layers and weight.channel_axis == 0 and weight.size // weight.shape[0] % 2 == 0:
        forms.append(VectorCodebook(int(random.integers(3, 9))))
    if weight.layers and weight.channel_axis == 0 and weight.shape[1] % 4 == 0:
        forms.append(TwoOfFour(int(random.integers(1, 7))))
    if trellis := possible(weight, [*Trellis.members()]):
        forms.append(trellis[int(random.integers(len(trellis)))])
    return forms[int(random.integers(len(forms)))]
