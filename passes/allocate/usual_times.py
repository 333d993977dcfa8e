"""About how long ONNX Runtime takes for operators and conversions, from their sizes alone.

For choices that nobody gave a budget of time for: nothing is timed, so that the same model gives the same file on every
machine. Every figure is what ONNX Runtime 1.32 takes on one thread of an x86-64 processor without VNNI; with it,
layers on codes save more.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ptqc.ir.layers import Layer
from ptqc.ir.operators import OPERATORS
from ptqc.passes.allocate.cost_model import Network, TimedOperator, Times

RUNTIME = "usual times of ONNX Runtime, one thread"
# Nanoseconds of a multiply-accumulate in float and on codes: of layers; of depthwise ones; of those with groups that
# are too narrow for the blocked layout of float kernels, in float.
DENSE, DEPTHWISE, NARROW = (0.02, 0.01), (0.05, 0.06), 0.16
# Of an element that a layer makes, and of a number of the weight that a product reads.
MADE, READ = (0.1, 0.3), (0.06, 0.02)
# Of the windows of one group at one place, which convolutions on codes gather unless they are depthwise.
GATHERED = 45.0
# Channels of a group that float kernels take together.
BLOCK = 8
# Of an element that any other operator makes, and that one makes that only moves codes.
ELEMENT, MOVED = (0.24, 0.24), (0.16, 0.06)
# Of an element of a function that codes look up in a table.
LOOKED_UP = (12.0, 1.0)
# Of an element that is rounded to a code, of one that is made real again, and of its move to another place in images,
# where kernels on codes have the channels last.
QUANTIZED, REAL, TURNED = 0.32, 0.16, 0.22
# Of running one more operator, and of what a product on codes does before it multiplies.
STARTED, PRODUCT_STARTED = 1000.0, 2000.0
IMAGE_AXES = 4


@dataclass(frozen=True)
class OperatorSizes:
    """What the times follow from, for one sample. macs: by kernel. shapes: of tensors, by name."""

    macs: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]

    def elements(self, tensor: str) -> int:
        """Of a tensor; 0 where its shape is not known."""
        return math.prod(self.shapes.get(tensor, (0,)))


def usual_times(network: Network, layers: Mapping[str, Layer], sizes: OperatorSizes) -> Times:
    """The times of a network. layers: by name."""
    floats, integers = dict[str, float](), dict[str, float]()
    for operator in network.operators:
        if not operator.tensors:
            continue
        layer = layers.get(operator.node)
        if layer is not None:
            real, codes = _layer(layer, sizes.macs.get(operator.node, 0))
            codes += 0.0 if layer.is_convolution else PRODUCT_STARTED
        else:
            real, codes = (ns * sizes.elements(operator.node) for ns in _each(operator))
        floats[operator.node], integers[operator.node] = real + STARTED, codes + STARTED
    quantize, dequantize = (
        {edge.tensor: _conversion(sizes.shapes.get(edge.tensor, ()), ns) for edge in network.edges}
        for ns in (QUANTIZED, REAL)
    )
    return Times(RUNTIME, floats, integers, quantize, dequantize, is_measured=False)


def arithmetic_times(network: Network, layers: Mapping[str, Layer], sizes: OperatorSizes) -> Times:
    """The times of the arithmetic alone: half as long on codes, and conversions take none.

    That is about what is left in large batches, with instructions for codes, and in native libraries.
    """
    floats = {o.node: DENSE[0] * sizes.macs.get(o.node, 0) for o in network.operators if o.tensors}
    integers = {node: ns * DENSE[1] / DENSE[0] for node, ns in floats.items()}
    for node in integers.keys() & layers.keys():
        integers[node] += _gathered(layers[node], sizes.macs.get(node, 0))
    return Times("arithmetic alone", floats, integers, {}, {}, is_measured=False)


def _each(operator: TimedOperator) -> tuple[float, float]:
    """Nanoseconds of an element that an operator makes which is no layer, in float and on codes."""
    known = OPERATORS.get(operator.op_type)
    if known is not None and known.is_looked_up:
        return LOOKED_UP
    return MOVED if operator.moves else ELEMENT


def _layer(layer: Layer, macs: int) -> tuple[float, float]:
    """Nanoseconds in float, and on codes."""
    made = macs / layer.width
    real, codes = (dense * macs + each * made for dense, each in zip(DENSE, MADE, strict=True))
    if not layer.is_convolution:
        numbers = math.prod(layer.shape)
        return real + READ[0] * numbers, codes + READ[1] * numbers
    inputs, outputs = layer.shape[1], layer.channels // layer.groups
    if layer.groups == 1:
        return real, codes
    if inputs == outputs == 1:
        found, on_codes = (dense * macs + each * made for dense, each in zip(DEPTHWISE, MADE, strict=True))
        return found, on_codes
    if inputs % BLOCK or outputs % BLOCK:
        real += (NARROW - DENSE[0]) * macs
    return real, codes + _gathered(layer, macs)


def _gathered(layer: Layer, macs: int) -> float:
    """Nanoseconds that a convolution on codes takes to gather the windows of its groups."""
    outputs = layer.channels // layer.groups
    if layer.groups == 1 or layer.shape[1] == outputs == 1:
        return 0.0
    return GATHERED * macs / layer.width / outputs


def _conversion(shape: tuple[int, ...], each: float) -> float:
    """Nanoseconds of a tensor's conversion, with the move of an image's channels."""
    is_image = len(shape) == IMAGE_AXES
    return (each + TURNED * is_image) * math.prod(shape) + STARTED * (1 + is_image)
