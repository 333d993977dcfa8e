"""Kernels that are not written yet, because what comes after them may become part of them or move their output."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from ptqc.codegen.kernels.backend import LayerSpec
from ptqc.codegen.kernels.epilogue import Stage
from ptqc.codegen.kernels.families import functions, move, planes, pointwise, pool
from ptqc.codegen.kernels.families.functions import Function
from ptqc.codegen.kernels.families.real_stages import Beside, RealStage, WithVector, functions_of, reading
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.writing import KernelSource
from ptqc.codegen.program.layout import ROUNDED, Layout
from ptqc.codegen.program.program import CompiledKernel, Window
from ptqc.ir.integer_arithmetic import Reals


class PendingKernel(ABC):
    """A kernel to be."""

    @abstractmethod
    def write(self, inputs: Sequence[Layout], output: Layout) -> KernelSource | CompiledKernel:
        """The kernel for its inputs and its output as they lie in the end."""

    def reads_framed(self, _value: Layout) -> bool:
        """Whether an input may lie like this in a larger plane."""
        return False

    def makes_framed(self) -> bool:
        """Whether the output may lie in a larger plane."""
        return False

    def can_fuse(self, _step: "PendingKernel", _index: int) -> bool:
        """Whether what alone reads the output, as this operand, may become part of the kernel."""
        return False


class ByPixel(PendingKernel):
    """A kernel that goes from pixel to pixel, and so may read and make what lies in a larger plane."""

    def is_by_pixel(self) -> bool:
        """Whether it does with these numbers."""
        return True

    def reads_framed(self, _value: Layout) -> bool:
        """Whether it goes from pixel to pixel."""
        return self.is_by_pixel()

    def makes_framed(self) -> bool:
        """Whether it goes from pixel to pixel."""
        return self.is_by_pixel()


@dataclass(frozen=True, eq=False)
class FixedKernel(PendingKernel):
    """A kernel that stays as it is."""

    kernel: CompiledKernel

    def write(self, _inputs: Sequence[Layout], _output: Layout) -> CompiledKernel:
        return self.kernel


@dataclass(frozen=True, eq=False)
class Alias(PendingKernel):
    """The same memory as a value of other axes."""

    isa: Isa

    def write(self, inputs: Sequence[Layout], output: Layout) -> KernelSource:
        """The kernel, where it is left."""
        flat = Layout((output.elements,), inputs[0].dtype)
        return pointwise.copy(flat, flat, self.isa)


@dataclass(frozen=True, eq=False)
class OutputCopy(PendingKernel):
    """An output as the model declares it."""

    isa: Isa

    def write(self, inputs: Sequence[Layout], output: Layout) -> KernelSource:
        """The kernel, where it is left."""
        return pointwise.copy(inputs[0], output, self.isa)


def _reads_framed(window: tuple[int, int], value: Layout) -> bool:
    """Whether a layer may read a value from a larger plane: other channels must not cut a row of its window."""
    return value.parent_buffer is None or window[1] == 1 or value.parent_buffer.size[0] == value.shape[0]


@dataclass(frozen=True, eq=False)
class IntegerLayer(PendingKernel):
    """A convolution or product between codes."""

    #: Its layouts and its epilogue are those before anything is fused.
    spec: LayerSpec
    layer: Callable[[LayerSpec], KernelSource]

    def reads_framed(self, value: Layout) -> bool:
        return _reads_framed(self.spec.window.kernel, value)

    def makes_framed(self) -> bool:
        return True

    def can_fuse(self, step: PendingKernel, _index: int) -> bool:
        """Table look-ups and sums."""
        return isinstance(step, TableLookup | IntegerAdd)

    def fuse(self, stage: Stage) -> "IntegerLayer":
        """The same layer with one more stage behind it."""
        return replace(self, spec=replace(self.spec, epilogue=self.spec.epilogue.with_stage(stage)))

    def write(self, inputs: Sequence[Layout], output: Layout) -> KernelSource:
        """The kernel; what its stages read follows the layer's own input."""
        return self.layer(replace(self.spec, x=inputs[0], y=output, epilogue=self.spec.epilogue.reading(inputs[1:])))


class FusableOp(PendingKernel):
    """What may be a stage of a kernel that makes one of its operands."""

    def may_follow(self, _own: int) -> bool:
        """Whether what makes operand `own` makes values of the result's shape."""
        return True

    @abstractmethod
    def stage(self, own: int) -> RealStage:
        """The same behind what makes operand `own`."""


class Composed(PendingKernel):
    """Real numbers of which more is computed before they are stored. stages: one of the other's result."""

    stages: tuple[RealStage, ...]

    def can_fuse(self, step: PendingKernel, _index: int) -> bool:
        """Functions that the last bits of what is made do not matter to, and at last rounding."""
        return not self.is_rounded and isinstance(step, Unary) and _fits(step.function)

    def fuse(self, stage: RealStage) -> Self:
        """The same kernel, with a stage behind what it makes."""
        return replace(self, stages=(*self.stages, stage))  # type: ignore[type-var]

    @property
    def is_rounded(self) -> bool:
        """Whether the last stage is rounding."""
        return any(function.form == ROUNDED for function in functions_of(self.stages))


def _fits(stage: RealStage) -> bool:
    """Whether the last bits of what a stage is computed of do not matter to it."""
    return stage.is_gentle or (isinstance(stage, Function) and stage.form == ROUNDED)


@dataclass(frozen=True, eq=False)
class RealLayer(Composed):
    """A convolution or product in float32."""

    #: Rows and columns of its window.
    window: tuple[int, int]
    #: Writes it between two layouts, with stages of what it makes.
    layer: Callable[[Layout, Layout, Sequence[RealStage]], KernelSource]
    #: Whether operations with other numbers may become part of it.
    is_dense: bool
    stages: tuple[RealStage, ...] = ()

    def reads_framed(self, value: Layout) -> bool:
        return _reads_framed(self.window, value)

    def makes_framed(self) -> bool:
        return True

    def can_fuse(self, step: PendingKernel, index: int) -> bool:
        """Sums with other values too."""
        if not self.is_dense or self.is_rounded or not isinstance(step, FusableOp):
            return super().can_fuse(step, index)
        return step.may_follow(index) and _fits(step.stage(index))

    def write(self, inputs: Sequence[Layout], output: Layout) -> KernelSource:
        """The kernel; what its stages read follows the layer's own input."""
        return self.layer(inputs[0], output, reading(self.stages, inputs[1:]))


@dataclass(frozen=True, eq=False)
class Float8Layer(RealLayer):
    """A convolution or product of FP8. channels: of its input that are read at once."""

    channels: int = 1

    def reads_framed(self, value: Layout) -> bool:
        """Nor may what is read at once be cut by other channels."""
        frame = value.parent_buffer
        is_aligned = frame is None or frame.at[0] % self.channels == frame.size[0] % self.channels == 0
        return is_aligned and super().reads_framed(value)


@dataclass(frozen=True, eq=False)
class IntegerProduct(RealLayer):
    """A product of codes that gives real numbers, to the last bit those of ONNX Runtime."""

    def can_fuse(self, step: PendingKernel, index: int) -> bool:
        """Whatever is computed of these with other values, too."""
        if not self.stages and isinstance(step, Binary | RowBinary | VectorBinary):
            return step.may_follow(index)
        return super().can_fuse(step, index)


@dataclass(frozen=True, eq=False)
class Binary(Composed, FusableOp):
    """An operation on two real values of one shape."""

    isa: Isa
    op_type: str
    stages: tuple[RealStage, ...] = ()

    def stage(self, own: int) -> RealStage:
        return Beside(self.op_type, own)

    def write(self, inputs: Sequence[Layout], output: Layout) -> KernelSource:
        return functions.binary(self.op_type, inputs, output, self.isa, stages=functions_of(self.stages))


@dataclass(frozen=True, eq=False)
class RowBinary(FusableOp):
    """An operation on a real value and one with a single number for each row. by_row: which operand that is."""

    isa: Isa
    op_type: str
    by_row: int
    kernel: KernelSource

    def may_follow(self, own: int) -> bool:
        """Whether the other operand is made."""
        return own != self.by_row

    def stage(self, own: int) -> RealStage:
        return Beside(self.op_type, own, is_by_row=True)

    def write(self, _inputs: Sequence[Layout], _output: Layout) -> KernelSource:
        return self.kernel


@dataclass(frozen=True, eq=False)
class VectorBinary(FusableOp):
    """An operation on a row-major value and one number for each channel, which is operand `place`.

    rounding: scale and zero point of the codes that its result becomes at once.
    """

    isa: Isa
    op_type: str
    place: int
    array: np.ndarray
    rounding: tuple[float, int] | None = None

    def stage(self, _own: int) -> RealStage:
        return WithVector(self.op_type, 1 - self.place, self.array)

    def can_fuse(self, step: PendingKernel, _index: int) -> bool:
        """Rounding."""
        return self.rounding is None and isinstance(step, Quantized)

    def write(self, inputs: Sequence[Layout], output: Layout) -> KernelSource:
        function = functions.BINARY[self.op_type]
        operation = (lambda x, c: function(c, x)) if self.place == 0 else function
        family = f"{self.op_type.lower()}_array{self.place}"
        return pointwise.with_vector(family, inputs[0], output, self.isa, self.array, operation, self.rounding)


@dataclass(frozen=True, eq=False)
class Quantized(PendingKernel):
    """Codes of real values."""

    isa: Isa
    scale: float
    zero_point: int

    def write(self, inputs: Sequence[Layout], output: Layout) -> KernelSource:
        return pointwise.quantize(inputs[0], output, self.isa, self.scale, self.zero_point)


@dataclass(frozen=True, eq=False)
class Unary(Composed, FusableOp):
    """A function of real values. stages: of its results."""

    isa: Isa
    function: Function
    stages: tuple[RealStage, ...] = ()

    def stage(self, _own: int) -> RealStage:
        return self.function

    def can_fuse(self, step: PendingKernel, index: int) -> bool:
        """What any composed kernel takes in, but nothing behind rounding."""
        return self.function.form != ROUNDED and super().can_fuse(step, index)

    def write(self, inputs: Sequence[Layout], output: Layout) -> KernelSource:
        return functions.unary((self.function, *functions_of(self.stages)), inputs[0], output, self.isa)


@dataclass(frozen=True, eq=False)
class TableLookup(PendingKernel):
    """A function of codes."""

    isa: Isa
    entries: np.ndarray

    def write(self, inputs: Sequence[Layout], output: Layout) -> KernelSource:
        return pointwise.table(inputs[0], output, self.isa, self.entries)


@dataclass(frozen=True, eq=False)
class IntegerAdd(PendingKernel):
    """A sum of two values of codes of one shape; numbers: as in `ptqc.ir.integer_arithmetic.add`."""

    isa: Isa
    numbers: Reals

    def write(self, inputs: Sequence[Layout], output: Layout) -> KernelSource:
        return pointwise.add(inputs, output, self.isa, self.numbers)


@dataclass(frozen=True, eq=False)
class Pad(PendingKernel):
    """A plane with a border. placed: whether the plane lies in the output already."""

    isa: Isa
    top: int
    left: int
    value: float
    placed: bool = False

    def write(self, inputs: Sequence[Layout], output: Layout) -> KernelSource:
        if self.placed:
            return move.border(inputs[0], output, self.value, self.isa)
        return move.pad(inputs[0], output, (0, self.top, self.left), self.value, self.isa)

    def reads_framed(self, _value: Layout) -> bool:
        return True


@dataclass(frozen=True, eq=False)
class Concat(ByPixel):
    """Values one after the other along an axis. placed: which of them lie in the output already."""

    isa: Isa
    axis: int
    placed: frozenset[int] = frozenset()

    def write(self, inputs: Sequence[Layout], output: Layout) -> KernelSource:
        return move.concat(inputs, output, self.axis, self.isa, self.placed)

    def is_by_pixel(self) -> bool:
        """Whether channels are concatenated."""
        return self.axis == 0


@dataclass(frozen=True, eq=False)
class MaxPool(ByPixel):
    """A pool."""

    isa: Isa
    window: Window

    def write(self, inputs: Sequence[Layout], output: Layout) -> KernelSource:
        return pool.largest(inputs[0], output, self.window, self.isa)


@dataclass(frozen=True, eq=False)
class StridedSlice(ByPixel):
    """Every so many elements along each axis."""

    isa: Isa
    starts: Sequence[int]
    steps: Sequence[int]

    def write(self, inputs: Sequence[Layout], output: Layout) -> KernelSource:
        return move.strided(inputs[0], output, self.starts, self.steps, self.isa)

    def behind(self, first: "StridedSlice") -> "StridedSlice":
        """Both slices as one."""
        pairs = [list(zip(first.starts, first.steps, strict=True)), list(zip(self.starts, self.steps, strict=True))]
        starts = [start + step * own for (start, step), (own, _) in zip(*pairs, strict=True)]
        return replace(self, starts=starts, steps=[step * own for (_, step), (_, own) in zip(*pairs, strict=True)])

    def is_by_pixel(self) -> bool:
        """Whether all channels are kept."""
        return self.steps[0] == 1


@dataclass(frozen=True, eq=False)
class NearestResize(ByPixel):
    """Elements of the places in a list along each axis."""

    isa: Isa
    maps: Sequence[np.ndarray]

    def write(self, inputs: Sequence[Layout], output: Layout) -> KernelSource:
        return move.nearest(inputs[0], output, self.maps, self.isa)


@dataclass(frozen=True, eq=False)
class QuantizedImage(PendingKernel):
    """Codes of a picture that comes plane by plane. has_vectors: whether its rows fill whole vectors."""

    isa: Isa
    scale: float
    zero_point: int
    has_vectors: bool

    def write(self, inputs: Sequence[Layout], output: Layout) -> KernelSource:
        return planes.quantize(inputs[0], output, self.isa, self.scale, self.zero_point)

    def makes_framed(self) -> bool:
        """Whether it may be written row by row."""
        return self.has_vectors
