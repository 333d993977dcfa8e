"""A network as calls of kernels."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Generic, TypeVar

import numpy as np
import onnx_ir as ir

from ptqc.codegen.program.constants import Stored
from ptqc.codegen.program.layout import Layout
from ptqc.runtime.lengths import Limit, Shape, SymDim
from ptqc.runtime.library import ALIGNMENT

# How near a kernel's real values come to ONNX Runtime's, as the kernel itself says.


@dataclass(frozen=True)
class Accuracy:
    """What the real values of a kernel are held to; with nothing said, a share of the largest of them.

    is_exact: it rounds nothing, or as ONNX Runtime does. adds_inputs, adds_products: it adds up its inputs, or products
    of them; terms may cancel, so what is left is measured by what was added. at_one: absolute error of functions that
    are ½ or 1 and something, whose small results carry the rounding of that. to_bfloat16: whether its last step rounds
    to bfloat16. of_chip: a share more, where a chip sums products in fewer digits than float32 has. axes, epsilon: of a
    normalization, whose rows along so many last axes lose their mean and are divided by √(variance + epsilon); gain:
    the largest factor behind that. The rounding of a mean counts as much as its row is enlarged.
    """

    is_exact: bool = False
    adds_inputs: bool = False
    adds_products: bool = False
    at_one: float = 0.0
    to_bfloat16: bool = False
    of_chip: float = 0.0
    axes: int = 0
    epsilon: float = 0.0
    gain: float = 1.0

    def enlarged(self, values: np.ndarray) -> np.ndarray:
        """How large a normalization's mean is beside the deviation, by element of what it reads, as it enlarges it."""
        rows = values.reshape(-1, math.prod(values.shape[-self.axes :])).astype(np.float64)
        largest = np.abs(rows).max(1, keepdims=True) / np.sqrt(rows.var(1, keepdims=True) + self.epsilon)
        return np.broadcast_to(self.gain * largest, rows.shape).reshape(values.shape)


USUAL = Accuracy()
EXACT = Accuracy(is_exact=True)
SUM_OF_INPUTS = Accuracy(adds_inputs=True)
SUM_OF_PRODUCTS = Accuracy(adds_products=True)


# A kernel that a target wrote, and what it says of a node that it has none for.

Cut = TypeVar("Cut")
Cuttable = TypeVar("Cuttable")


class UnsupportedOp(Exception):
    """What no kernel of a target computes; the message says why."""


@dataclass(frozen=True)
class Alternatives(Generic[Cut, Cuttable]):
    """Ways to cut a kernel's loops, the one it has first; all compute the same. write: the kernel cut otherwise."""

    cuts: Sequence[Cut]
    write: Callable[[Cut], Cuttable]


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel and its constants, which follow the inputs among its arguments; the output is the last one."""

    #: What it computes, as reports call it.
    family: str
    #: Of the function in the library.
    name: str
    #: TVM's.
    function: Any
    constants: tuple[Stored, ...]
    #: Products and sums of one sample, where these are what takes time.
    operations: int = 0
    accuracy: Accuracy = USUAL
    alternatives: "Alternatives[Any, CompiledKernel] | None" = None
    #: Microseconds for one sample by machine, where a target predicts them.
    predicted: Mapping[str, float] = field(default_factory=dict)
    #: Lengths that it takes behind the output, in this order.
    lengths: tuple[str, ...] = ()

    def cut(self, chosen: Any) -> "CompiledKernel":
        """The kernel in one of its alternatives."""
        assert self.alternatives is not None
        return self.alternatives.write(chosen)


@dataclass(frozen=True)
class ProgramStep:
    """One kernel of the network: names of the values it reads and of the one it makes.

    value: what the lowered graph calls the one it makes; a name of its own for copies and borders, which the graph
    lacks. placed: inputs that lie in the memory of the output already, and are no arguments of the kernel. within: real
    values that it computes on the way.
    """

    kernel: CompiledKernel
    inputs: tuple[str, ...]
    output: str
    value: str
    placed: tuple[str, ...] = ()
    within: tuple[str, ...] = ()

    @property
    def arguments(self) -> tuple[str, ...]:
        """Inputs that the kernel takes."""
        return tuple(name for name in self.inputs if name not in self.placed)


@dataclass(frozen=True)
class Program:
    """All steps in order, and the layout of every value.

    names: what the model calls the outputs. sizes: shapes of inputs and outputs where the library takes one run of the
    model and no more; else the batch, of any size, is in front of a sample. fixed: inputs that have to be these.
    lengths: what sizes vary with. limits: of what follows from these.
    """

    steps: tuple[ProgramStep, ...]
    layouts: dict[str, Layout]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    names: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, Shape] = field(default_factory=dict)
    fixed: Mapping[str, np.ndarray] = field(default_factory=dict)
    lengths: tuple[SymDim, ...] = ()
    limits: tuple[Limit, ...] = ()


# Which axes of a value belong to one sample of a kernel: all but the batch; where a run is one sample, all of them.


@dataclass(frozen=True)
class Axes:
    """shapes: of every value in one run of the model. batch: size of the axis that is first everywhere; see `lead`.

    batch None: a sample is a whole run, whatever its axes mean.
    """

    shapes: Mapping[str, Shape]
    batch: int | None

    def lead(self, name: str) -> int:
        """How many axes in front a sample lacks: the batch, or of a whole run one of size 1, which holds nothing.

        Raises UnsupportedOp where the first axis is not the batch.
        """
        shape = self.shapes.get(name)
        if shape is None:
            raise UnsupportedOp(f"{name} is not a tensor")
        if 0 in shape:
            raise UnsupportedOp(f"{name} has no elements")
        if self.batch is None:
            return int(shape[:1] == (1,))
        if shape[:1] != (self.batch,):
            raise UnsupportedOp(f"the first axis of {name} is not the batch")
        return 1

    def sample(self, name: str) -> Shape:
        """The shape of one sample of a value. Raises UnsupportedOp where its first axis is not the batch."""
        return self.shapes[name][self.lead(name) :]

    def outer(self, *names: str, touched: bool = False) -> int:
        """How many axes in front of these values an operator may leave out of account: 1, or 0 where some have none.

        touched: the operator does something along the first axis. Raises UnsupportedOp where that is the batch.
        """
        leads = {self.lead(name) for name in names}
        if not touched and leads == {1}:
            return 1
        if self.batch is not None:
            raise UnsupportedOp("it mixes the samples of a batch")
        return 0


# The file of constants that all libraries of an artifact read: the same bytes lie there once.


class Weights:
    """The file in the making; never empty, so that it can be mapped."""

    def __init__(self) -> None:
        self._data = bytearray(ALIGNMENT)
        self._places: dict[bytes, int] = {}

    def place(self, array: np.ndarray) -> int:
        """Where the bytes of an array begin: a multiple of what kernels assume of pointers."""
        data = array.tobytes()
        key = hashlib.sha256(data).digest()
        if key not in self._places:
            self._data += bytes(-len(self._data) % ALIGNMENT)
            self._places[key] = len(self._data)
            self._data += data
        return self._places[key]

    def __bytes__(self) -> bytes:
        return bytes(self._data)


# The geometry of a window that slides over a padded plane.


@dataclass(frozen=True)
class Window:
    """channels: of the input. size: rows and columns of the padded input. kernel, strides, dilations: by axis."""

    channels: int
    size: tuple[int, int]
    kernel: tuple[int, int] = (1, 1)
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)

    @property
    def output(self) -> tuple[int, int]:
        """Rows and columns of the output."""
        rows, columns = (
            (size - (kernel - 1) * dilation - 1) // stride + 1
            for size, kernel, stride, dilation in zip(self.size, self.kernel, self.strides, self.dilations, strict=True)
        )
        return rows, columns

    @property
    def products(self) -> int:
        """Taps of all output pixels."""
        result: int = prod(self.output) * prod(self.kernel)
        return result

    @property
    def is_pointwise(self) -> bool:
        """Whether every input pixel is one output pixel."""
        return self.kernel == (1, 1) and self.strides == (1, 1)


def slides(node: ir.Node) -> bool:
    """Whether a window slides over the node's first input, whose size is then one."""
    return "kernel_shape" in node.attributes
