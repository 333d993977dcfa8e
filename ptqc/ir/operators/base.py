"""What there is to know of an operator, whatever the node."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
import onnx_ir as ir

from ptqc.formats import UINT8, QuantParams
from ptqc.ir.nodes import constant, scalar

# One kernel of a lowered graph on codes: what it reads and writes, with their scales.


@dataclass(frozen=True)
class LoweredStep:
    """One kernel of a lowered graph.

    inputs, output: names of its codes, or of real values that the node gives. tensor: the value that the output holds,
    as the model calls it.
    """

    node: ir.Node
    inputs: tuple[str, ...]
    output: str
    tensor: str

    @property
    def kind(self) -> str:
        """Its operator."""
        return self.node.op_type

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self.kind} {self.tensor}"


def codes_of(value: ir.Value | None) -> str | None:
    """Name of the activation codes behind a dequantized value."""
    producer = value.producer() if value is not None else None
    if producer is None or producer.op_type != "DequantizeLinear":
        return None
    codes = producer.inputs[0]
    return str(codes.name) if codes is not None and codes.dtype == ir.DataType.UINT8 else None


def params_of(node: ir.Node) -> QuantParams:
    """Parameters of a QuantizeLinear or DequantizeLinear of an activation."""
    scale = constant(node.inputs[1])
    zero = constant(node.inputs[2]) if len(node.inputs) > 2 else np.zeros((), np.uint8)  # the default
    assert scale is not None
    assert zero is not None
    return QuantParams(UINT8, float(scale), int(zero))


def input_params(step: LoweredStep, index: int = 0) -> QuantParams:
    """Parameters of a kernel's input codes."""
    producer = step.node.inputs[index].producer()  # type: ignore[union-attr]
    assert producer is not None
    return params_of(producer)


def has_float_output(step: LoweredStep) -> bool:
    """Whether a kernel gives real values."""
    return step.output == step.node.outputs[0].name


def output_params(step: LoweredStep) -> QuantParams:
    """Parameters of a kernel's output codes."""
    return params_of(step.node.outputs[0].consumers()[0])


def layer_constants(step: LoweredStep) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Weight codes, weight scales and bias codes of a layer."""
    weight = step.node.inputs[1].producer()  # type: ignore[union-attr]
    assert weight is not None
    codes, scale = constant(weight.inputs[0]), constant(weight.inputs[1])
    assert codes is not None
    assert scale is not None
    if len(step.node.inputs) < 3 or step.node.inputs[2] is None:
        return codes, scale, None
    bias = step.node.inputs[2].producer()
    assert bias is not None
    return codes, scale, constant(bias.inputs[0])


# The inputs of a node, by place, as far as they are constant.
Constants = Sequence[np.ndarray | None]
# Codes of a kernel, or the real values that it gives; the least and the most of them where rounding is not fixed.
Computed = np.ndarray | tuple[np.ndarray, np.ndarray]
ACTIVATION = (0,)
# In the place of a kernel that ONNX Runtime lacks: the file has a table of what each code becomes.
LOOKED_UP = frozenset(["GatherElements"])


class Trait(Enum):
    """What an operator is, where a yes or no says it."""

    LAYER = auto()  # multiplies activations by weights, which get codes of their own
    WEIGHTED = auto()  # its constants are trained: weights, or the factors of a normalization
    PRODUCT = auto()  # adds up products of its input and a weight, its second input
    NORMALIZATION = auto()
    FLOAT_OUTPUT = auto()  # ONNX Runtime computes it on codes even where its output stays float
    RESHAPES = auto()  # keeps the values and their order
    COPIES = auto()  # keeps the values, their order and their shape
    SIGMOID = auto()  # from 0 to 1, each element for itself
    SOFTMAX = auto()
    POINTWISE = auto()  # a function of each element for itself; what else it reads are numbers that hold for all
    HOMOGENEOUS = auto()  # gives k > 0 times its output for k times its input, each element or channel for itself
    PLANES = auto()  # works on planes of pixels, each channel for itself
    AFFINE = auto()  # adds to its input or multiplies it
    SUM = auto()  # adds two values
    CLIPS = auto()  # cuts off what lies outside of two bounds
    REDUCES = auto()  # makes one value of all values along some axes
    LINEAR = auto()  # gives what it reads, elsewhere or less the same number for all
    KEEPS_SCORES = auto()  # gives a probability where it reads one, or what the values themselves tell to be one
    LOGARITHM = auto()  # of small numbers, the relative error is what counts
    NOT_NEGATIVE = auto()  # has no value for negative numbers
    MEASURES = auto()  # looks at the shape of its input only
    ROUNDS = auto()  # to whole numbers
    LOOKS_UP = auto()  # takes values out of its first input, at places that its second input says
    RECURRENT = auto()  # goes through a sequence with a state
    FUSED_WITH_SUM = auto()  # ONNX Runtime makes one Gemm of it and of the sum behind it
    ROUNDED_WEIGHT = auto()  # ONNX Runtime rounds its constant weight to 8 bits where all around it is codes
    RANDOM = auto()  # gives another output at every run
    BODIES = auto()  # runs graphs that it has as attributes
    CONVERTS = auto()  # between real values and codes
    QUANTIZED = auto()  # computes on codes, in a model that is quantized already
    FILLS_GAPS = auto()  # expects NaN, which stands for what is missing
    TREES = auto()  # decision trees, which have no weights
    SUPPORT_VECTORS = auto()  # compares its input with vectors that are kept
    SPELLED_OUT = auto()  # exporters write its attributes even where they are the default
    IMPLIED_ZERO = auto()  # ONNX Runtime computes it on codes even where zero points of 0 are left out


@dataclass(frozen=True)
class Operator:
    """One operator of ONNX or of ONNX Runtime.

    name, domain: "" is ONNX's own. traits: see `Trait`. channels: the axis along which a layer gives its channels.
    moves: whether a node can move or select codes as they are, where the operator can; then output and input have one
    scale. operands: inputs, by place, that carry activations; None: all. kernels: those of ONNX Runtime that compute it
    on codes with an output scale of its own. reference: what these kernels give for input codes, bit by bit.
    parameters: inputs, by place, that say what shape the output has or along which axes it is computed. masks: inputs,
    by place, that say which positions an attention looks at. steep: gives the inputs, by place, at whose zero it has no
    finite slope or no value, of a node with these constants.
    """

    name: str
    traits: frozenset[Trait] = frozenset()
    domain: str = ""
    channels: int | None = None
    moves: Callable[[ir.Node], bool] | None = None
    operands: tuple[int, ...] | None = ACTIVATION
    kernels: frozenset[str] = frozenset()
    reference: Callable[[LoweredStep, Sequence[np.ndarray]], Computed] | None = None
    parameters: tuple[int, ...] = ()
    masks: tuple[int, ...] = ()
    steep: Callable[[Constants], tuple[int, ...]] | None = None

    @property
    def is_looked_up(self) -> bool:
        """Whether the file has a table for it, as ONNX Runtime has no kernel that computes it on codes."""
        return self.kernels == LOOKED_UP


def operator(name: str, *traits: Trait, **facts: object) -> Operator:
    """An operator with these traits."""
    return Operator(name, frozenset(traits), **facts)  # type: ignore[arg-type]


def alike(names: Sequence[str], *traits: Trait, **facts: object) -> tuple[Operator, ...]:
    """Operators of which the same is known."""
    return tuple(operator(name, *traits, **facts) for name in names)


# The bounds of a Relu or Clip.


def clip_bounds(node: ir.Node) -> tuple[float, float] | None:
    """Lower and upper bound of a Relu or of a Clip with constant bounds."""
    if node.op_type == "Relu":
        return 0.0, float("inf")
    if node.op_type != "Clip":
        return None
    bounds = [-float("inf"), float("inf")]
    for index, value in enumerate(node.inputs[1:3]):
        if value is None:
            continue
        bound = scalar(value)
        if bound is None:
            return None
        bounds[index] = float(bound)
    return bounds[0], bounds[1]
