"""Builds a network: values of the graph as tensors, and the calls that make them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod

import numpy as np
import onnx_ir as ir

from ptqc.codegen.c.constants import C_TYPES, real
from ptqc.codegen.c.network import (
    STRUCTURE,
    Argument,
    Buffer,
    CTensor,
    Home,
    NetworkCalls,
    Order,
    Place,
    Shape,
    Step,
    Terminal,
    channels_last,
    collapsed,
    plain,
    renamed,
)
from ptqc.codegen.program.program import UnsupportedOp, slides
from ptqc.ir.lowered import Lowered
from ptqc.ir.nodes import integers, only_consumer, text
from ptqc.ir.operators import Trait, known
from ptqc.ir.operators.base import codes_of, params_of

CODES, REAL = "uint8", "float32"
# Of sizes in structures of C.
LARGEST = 0xFFFF
# Of a function that moves elements along four axes, where there are more.
MOST_CALLS = 16
IMAGE_AXES = (3, 4)


class NetworkBuilder:
    """A network in the making.

    shapes, dtypes: of every value of the graph. windows: shapes for whole windows, equal to those where a call
    takes one. constants: values that no input enters.
    """

    def __init__(
        self,
        lowered: Lowered,
        shapes: Mapping[str, Shape],
        dtypes: Mapping[str, str],
        constants: Mapping[str, np.ndarray],
    ) -> None:
        self.lowered, self.shapes, self.dtypes, self.values = lowered, dict(shapes), dtypes, dict(constants)
        self.windows: Mapping[str, Shape] = shapes
        self.network = NetworkCalls()
        self.tensors: dict[str, CTensor] = {}
        self._moved: dict[tuple[Buffer, Shape, Order], CTensor] = {}
        self._reals: dict[str, CTensor] = {}

    # Inputs and outputs

    def take_input(self, value: ir.Value) -> None:
        """An input of the model: as codes where all that reads it rounds it to these."""
        name, readers = str(value.name), [use.node for use in value.uses()]
        if not readers:
            return
        rounding = {params_of(node) for node in readers if node.op_type == "QuantizeLinear" and _has_codes(node)}
        is_coded = len(rounding) == 1 and all(node.op_type == "QuantizeLinear" for node in readers)
        dtype = CODES if is_coded else self.dtypes[name]
        if dtype not in (CODES, REAL):
            return  # refused where something reads it
        shape = self.shapes[name]
        firsts = [user for node in readers for user in (_users(node.outputs[0]) if is_coded else [node])]
        is_image = len(shape) in IMAGE_AXES and bool(firsts) and all(map(_reads_planes, firsts))
        order = channels_last(len(shape)) if is_image else plain(len(shape))
        tensor = CTensor(Buffer(name, prod(shape) * np.dtype(dtype).itemsize, Home.CALLER), shape, dtype, order)
        if not is_coded:
            self.tensors[name] = tensor
            self.network.inputs.append(Terminal(name, tensor, name))
            return
        params = rounding.pop()
        for node in readers:
            self.tensors[str(node.outputs[0].name)] = tensor
        codes = (params.scale, params.zero_point)
        self.network.inputs.append(Terminal(name, tensor, str(readers[0].outputs[0].name), codes))

    def give_output(self, value: ir.Value, name: str) -> None:
        """An output of the model: as codes where it is what these stand for. name: of the model."""
        inner, codes, number = codes_of(value), None, str(value.name)
        if inner is not None and inner in self.tensors:
            maker = value.producer()
            assert maker is not None
            params, number = params_of(maker), inner
            codes = params.scale, params.zero_point
        elif number in self.values:
            raise UnsupportedOp("it does not depend on an input")
        tensor = self.tensors[number] if codes else self.read(value)
        order = tensor.order if tensor.is_ordered(plain(len(tensor.shape))) else plain(len(tensor.shape))
        tensor = self.ordered(tensor, order)
        is_taken = tensor.buffer.home is not Home.ARENA or any(
            tensor.buffer is other.tensor.buffer for other in self.network.outputs
        )
        is_part = tensor.size * np.dtype(tensor.dtype).itemsize != tensor.buffer.bytes
        if is_taken or is_part:
            tensor = self.copied(tensor)
        tensor.buffer.home = Home.CALLER
        self.network.outputs.append(Terminal(name, tensor, number, codes))

    # Values

    def name(self, value: ir.Value | None) -> str:
        """Of a value that has to be there."""
        assert value is not None
        return str(value.name)

    def is_constant(self, value: ir.Value | None) -> bool:
        """Whether no input enters a value."""
        return value is not None and str(value.name) in self.values

    def number(self, value: ir.Value | None) -> np.ndarray:
        """A constant value. Raises UnsupportedOp where it is none."""
        if value is None or str(value.name) not in self.values:
            raise UnsupportedOp("an input of it that has to be constant is not")
        return self.values[str(value.name)]

    def read(self, value: ir.Value | None) -> CTensor:
        """A value as it is: codes as codes, and real values that stand for codes as real ones."""
        name = self.name(value)
        if name in self.tensors:
            return self.tensors[name]
        if name in self.values:
            return self.constant(self.values[name])
        inner = codes_of(value)
        if inner is None or value is None:
            raise UnsupportedOp(f"it reads {name}, which is {self.dtypes.get(name, 'unknown')}")
        if name not in self._reals:
            maker = value.producer()
            assert maker is not None
            self._reals[name] = self._dequantized(self.tensors[inner], params_of(maker).scale, maker, name)
        return self._reals[name]

    def _dequantized(self, codes: CTensor, scale: float, maker: ir.Node, name: str) -> CTensor:
        tensor = self.new(name, codes.shape, REAL, codes.order)
        zero = params_of(maker).zero_point
        arguments: list[Argument] = [Place(codes.buffer), Place(tensor.buffer), str(codes.size), real(scale), str(zero)]
        self.add(Step("dequantize", arguments, [codes.buffer], [tensor.buffer], name, tensor), maker.op_type)
        return tensor

    def codes(self, name: str) -> CTensor:
        """Codes by the name that they have in the lowered graph."""
        if name in self.values:
            return self.constant(self.values[name])
        return self.tensors[name]

    def constant(self, array: np.ndarray) -> CTensor:
        """An array in flash."""
        if str(array.dtype) not in C_TYPES or array.dtype == np.int64:
            raise UnsupportedOp(f"it reads a constant of the type {array.dtype}")
        name = self.network.constants.add(array, "numbers")
        return CTensor(Buffer(name, array.nbytes, Home.FLASH), array.shape, str(array.dtype), plain(array.ndim))

    def new(self, name: str, shape: Shape, dtype: str, order: Order | None = None) -> CTensor:
        """Memory for a value."""
        if prod(shape) == 0:
            raise UnsupportedOp(f"{name} has no elements")
        if dtype not in (CODES, REAL):
            raise UnsupportedOp(f"{name} is {dtype}, and it computes {CODES} and {REAL}")
        size = prod(shape) * np.dtype(dtype).itemsize
        return CTensor(Buffer(name, size), shape, dtype, plain(len(shape)) if order is None else order)

    def output(self, value: ir.Value, dtype: str, order: Order | None = None, name: str = "") -> CTensor:
        """Memory for what a node gives. name: of its codes, where they have another one."""
        return self.new(name or str(value.name), self.shapes[str(value.name)], dtype, order)

    def add(self, step: Step, operator: str) -> None:
        """Append a step."""
        step.operator = operator
        self.network.steps.append(step)
        if step.tensor is not None and step.value:
            self.tensors.setdefault(step.value, step.tensor)

    def place(self, name: str, tensor: CTensor) -> None:
        """Call a tensor by this name of the graph."""
        self.tensors[name] = tensor

    # Order in memory

    def ordered(self, tensor: CTensor, order: Order) -> CTensor:
        """A tensor with its axes in this order in memory: moved only where it has another one."""
        if tensor.is_ordered(order):
            return renamed(tensor, order=order)
        key = tensor.buffer, tensor.shape, order
        if key not in self._moved:
            result = self.new(tensor.buffer.name, tensor.shape, tensor.dtype, order)
            self.move(tensor, result, tensor.steps, result.steps, result.shape)
            self._moved[key] = result
        return self._moved[key]

    def copied(self, tensor: CTensor) -> CTensor:
        """The same in memory of its own."""
        result = self.new(tensor.buffer.name, tensor.shape, tensor.dtype, tensor.order)
        self.move(tensor, result, tensor.steps, result.steps, result.shape)
        return result

    def plain(self, tensor: CTensor) -> CTensor:
        """A tensor as the graph has it."""
        return self.ordered(tensor, plain(len(tensor.shape)))

    def image(self, tensor: CTensor) -> CTensor:
        """A tensor with its channels last."""
        return self.ordered(tensor, channels_last(len(tensor.shape)))

    def move(
        self,
        source: CTensor,
        target: CTensor,
        from_steps: Sequence[int],
        to_steps: Sequence[int],
        sizes: Shape,
        offsets: tuple[int, int] = (0, 0),
        value: str = "",
    ) -> None:
        """Copy elements. steps: along axes of these sizes; offsets: of the first element in both, in elements."""
        axes = sorted(range(len(sizes)), key=lambda axis: -abs(to_steps[axis]))
        joined = collapsed(*([each[axis] for axis in axes] for each in (sizes, from_steps, to_steps)))
        if joined is None:  # one call for each place of the shortest axis
            axis = min((each for each in axes if sizes[each] > 1), key=lambda each: sizes[each])
            if sizes[axis] > MOST_CALLS:
                raise UnsupportedOp("it moves elements along more than four axes")
            rest = (*sizes[:axis], 1, *sizes[axis + 1 :])
            for at in range(sizes[axis]):
                begins = (offsets[0] + at * from_steps[axis], offsets[1] + at * to_steps[axis])
                self.move(source, target, from_steps, to_steps, rest, begins, value if at == sizes[axis] - 1 else "")
            return
        item = np.dtype(target.dtype).itemsize
        lengths, (come, go) = joined
        count = 1
        if come[-1] == go[-1] == 1:  # whole stretches at once
            count, lengths[-1] = lengths[-1], 1
        fields = [lengths, [step * item for step in come], [step * item for step in go]]
        text = ", ".join("{" + ", ".join(map(str, each)) + "}" for each in fields)
        places = [Place(each.buffer, at * item) for each, at in zip((source, target), offsets, strict=True)]
        step = Step(
            "move",
            [STRUCTURE, *places],
            [source.buffer],
            [target.buffer],
            value,
            target if value else None,
            structure=lambda _: f"{{{text}, {count * item}}}",
        )
        self.add(step, "Transpose")

    # Streams

    @contextmanager
    def reading(self, node: ir.Node) -> Iterator[None]:
        """While the calls of a node are added, its inputs are what it reads."""
        del node
        yield

    def passes(self, node: ir.Node) -> bool:
        """Whether what a node gives is its input, in rows that are called otherwise."""
        del node
        return False

    # Windows

    def pads(self, node: ir.Node, rank: int) -> list[int]:
        """Padding in front of each axis, and behind it."""
        return integers(node, "pads", [0] * (2 * rank))

    def window(self, source: CTensor, output: Shape, node: ir.Node, kernel: Sequence[int]) -> "CWindow":
        """How a window of a node moves over channels-last pixels."""
        rank = len(kernel)
        if rank not in (1, 2) or text(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
            raise UnsupportedOp("only windows over one or two axes with explicit padding have a kernel")
        pads = self.pads(node, rank)
        strides, dilations = (integers(node, key, [1] * rank) for key in ("strides", "dilations"))
        rows, columns = (1, *source.shape[2:])[-2:]
        out_rows, out_columns = (1, *output[2:])[-2:]
        return CWindow(
            (rows, columns, source.shape[1]),
            (out_rows, out_columns, output[1]),
            ((0, *pads[:rank])[-2:]),
            (1, *kernel)[-2:],
            (1, *strides)[-2:],
            (1, *dilations)[-2:],
        )


class CWindow:
    """The geometry of a window, as structures of C have it."""

    def __init__(self, source: Shape, output: Shape, padding: Shape, size: Shape, strides: Shape, dilations: Shape):
        self.source, self.output, self.padding = source, output, padding
        self.size, self.strides, self.dilations = size, strides, dilations
        if max(*source, *output, *size, *strides, *dilations, prod(size) * source[2]) > LARGEST:
            raise UnsupportedOp(f"sizes {source} and {output}, or windows {size} of all channels, exceed {LARGEST}")

    @property
    def taps(self) -> int:
        """Pixels of a window."""
        return prod(self.size)

    @property
    def is_pointwise(self) -> bool:
        """Whether every input pixel is one output pixel."""
        return self.taps == 1 and self.source[:2] == self.output[:2] and not any(self.padding)

    def fields(self, *names: str) -> str:
        """Fields of a structure by the names that they have there."""
        return ", ".join("{" + ", ".join(map(str, getattr(self, name))) + "}" for name in names)


def rows_of(tensor: CTensor, outputs: int) -> CWindow:
    """Rows along the last axis as pixels."""
    width = tensor.shape[-1] if tensor.shape else 1
    count = tensor.size // width
    return CWindow((1, count, width), (1, count, outputs), (0, 0), (1, 1), (1, 1), (1, 1))


def _reads_planes(node: ir.Node) -> bool:
    """Whether it works on pixels, each with all its channels."""
    operator = known(node)
    return slides(node) or (operator is not None and Trait.PLANES in operator.traits)


def _users(value: ir.Value) -> list[ir.Node]:
    """What reads the real values behind codes."""
    direct = [use.node for use in value.uses()]
    return [
        user
        for node in direct
        for user in ([use.node for use in node.outputs[0].uses()] if node.op_type == "DequantizeLinear" else [node])
    ]


def _has_codes(node: ir.Node) -> bool:
    return node.outputs[0].dtype == ir.DataType.UINT8


def rounding_of(node: ir.Node) -> ir.Node | None:
    """The QuantizeLinear that is all that reads what a node gives."""
    reader = only_consumer(node.outputs[0])
    return reader if reader is not None and reader.op_type == "QuantizeLinear" else None
