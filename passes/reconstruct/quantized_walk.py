"""A walk in which every quantized tensor is rounded as soon as it exists: what the layers behind will really see."""

from collections.abc import Callable, Collection, Container, Mapping, Sequence

import numpy as np

from ptqc.execution.onnxruntime import Feeds
from ptqc.execution.tensors import Compressed, real
from ptqc.execution.walk import Keep, Slicer, Values, Walk, bytes_of
from ptqc.formats import ActivationParams, QuantParams
from ptqc.ir.operators import OPERATORS, Trait, named

LAYERS, LOGARITHMS = named(Trait.LAYER), named(Trait.LOGARITHM)

# Makes the rule by which a walk holds values, from the parameters of quantized tensors and the tensors whose small
# numbers count.
Holding = Callable[[Mapping[str, QuantParams], Collection[str]], Keep]


def compact(params: Mapping[str, QuantParams], fine: Collection[str] = ()) -> Keep:
    """Keeps values in 8 bits where they are quantized, in 16 elsewhere where that is enough.

    params: tensor -> parameters. fine: tensors whose small numbers count, see `fine_values`.
    """
    return lambda name, array: Compressed.of(array, params.get(name), name in fine)


def uncompressed(params: Mapping[str, QuantParams], _fine: Collection[str] = ()) -> Keep:
    """Keeps values in 8 bits where they are quantized, as they are elsewhere."""
    return lambda name, array: Compressed.of(array, params[name]) if name in params else array


def fine_values(slicer: Slicer) -> frozenset[str]:
    """Values whose small numbers count as much as their large ones, and must not become 0.

    They are denominators, what roots, negative powers and logarithms are taken of, and all that a logarithm is made of
    since the last layer.
    """
    fine, logged = set[str](), set[str]()
    for node in reversed(slicer.nodes):
        if node.op_type in LOGARITHMS or (logged.intersection(node.output) and node.op_type not in LAYERS):
            logged.update(node.input)
        known = OPERATORS.get(node.op_type)
        if known is not None and known.steep is not None:
            fine.update(node.input[place] for place in known.steep([slicer.constant(name) for name in node.input]))
    return frozenset(fine | logged)


def run_quantized(
    slicer: Slicer,
    batches: Sequence[Feeds],
    params: Mapping[str, ActivationParams],
    constants: Mapping[str, np.ndarray] | None = None,
) -> list[Values]:
    """Outputs per batch with the tensors in `params` rounded."""

    def keep(name: str, array: np.ndarray) -> np.ndarray:
        return params[name].rounded(array) if name in params else array

    walk = Walk(slicer, batches, constants, keep)
    while walk.position < len(walk):
        walk.step()
    return [{name: real(walk.values[name][i]) for name in slicer.outputs} for i in range(walk.count)]


def peak_bytes(walk: Walk, whole: Container[str]) -> int:
    """Largest number of bytes that a walk holds at a time, run to its end.

    whole: names of nodes, by their first output, whose inputs are held until all of their outputs are there.
    """
    peak = walk.held_bytes
    while walk.position < len(walk):
        results = walk.compute()
        if walk.node.output[0] in whole:
            peak = max(peak, walk.held_bytes + bytes_of(results))
        walk.advance(results)
        peak = max(peak, walk.held_bytes)
    return peak
