"""A program in the making: kernels are added for the values of a lowered graph, and their layouts remembered."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from ptqc.codegen.kernels.backend import KernelBackend
from ptqc.codegen.kernels.families import move, pointwise, sizes
from ptqc.codegen.kernels.families.functions import Function
from ptqc.codegen.kernels.fusion import PendingStep, fused
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.pending import FixedKernel, OutputCopy, Pad, PendingKernel
from ptqc.codegen.kernels.writing import KernelSource
from ptqc.codegen.program.layout import BFLOAT16, Layout
from ptqc.codegen.program.probing import fit
from ptqc.codegen.program.program import Axes, CompiledKernel, Program, ProgramStep, UnsupportedOp
from ptqc.formats import to_bfloat16
from ptqc.ir.lowered import Lowered
from ptqc.ir.nodes import required
from ptqc.ir.operators import clip_bounds, data_inputs, keeps_codes
from ptqc.ir.operators.base import params_of
from ptqc.runtime.lengths import Limit, Shape, Size, SymDim, SymExpr, narrowest


@dataclass
class ProgramBuilder:
    """One program. axes, dtypes: of every value. constants: values that never change, with all axes of the model.

    functions: codes that are a table of other codes, with the name of those. reals: the same of real values. bfloats:
    whether values are bfloat16, of those that were asked for. lengths: what sizes vary with. points: lengths of some
    runs. numbers: whole numbers that follow from lengths, at each of the points. largest: of more of them the largest.
    limits: of what follows from lengths.
    """

    lowered: Lowered
    axes: Axes
    dtypes: Mapping[str, str]
    constants: Mapping[str, np.ndarray]
    backend: KernelBackend
    layouts: dict[str, Layout] = field(default_factory=dict)
    steps: list[PendingStep] = field(default_factory=list)
    functions: dict[str, tuple[str, np.ndarray]] = field(default_factory=dict)
    reals: dict[str, tuple[ir.Value, Function]] = field(default_factory=dict)
    bfloats: dict[str, bool] = field(default_factory=dict)
    lengths: tuple[SymDim, ...] = ()
    points: tuple[Mapping[str, int], ...] = ({},)
    numbers: Mapping[str, tuple[np.ndarray, ...]] = field(default_factory=dict)
    largest: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    limits: list[Limit] = field(default_factory=list)

    @property
    def isa(self) -> Isa:
        """The instructions of the target."""
        return self.backend.isa

    def shape(self, value: ir.Value) -> Shape:
        """Shape of one sample. Raises UnsupportedOp when the first axis is not the batch."""
        return self.axes.sample(str(value.name))

    def sizes(self, value: ir.Value | None) -> Shape:
        """Sizes of all axes in one run of the model."""
        return self.axes.shapes[str(required(value).name)]

    def dtype(self, value: ir.Value | None) -> str:
        """The type of a value's elements."""
        return self.dtypes[str(required(value).name)]

    def outer(self, *values: ir.Value | None, touched: bool = False) -> int:
        """How many axes in front of these values an operator may leave out of account; see `Axes.outer`."""
        return self.axes.outer(*(str(required(value).name) for value in values), touched=touched)

    def check_one_sample(self, value: ir.Value | None) -> None:
        """Raises UnsupportedOp where a run has several of what an operator takes one by one."""
        if not self.axes.lead(str(required(value).name)):
            raise UnsupportedOp(f"a run has several samples of its input {required(value).name}")

    def is_constant(self, value: ir.Value | None) -> bool:
        """Whether a value never changes."""
        return value is not None and value.name in self.constants

    def number(self, value: ir.Value | None) -> np.ndarray:
        """A constant input. Raises UnsupportedOp when it is computed from the model's inputs."""
        if value is None or not self.is_constant(value):
            raise UnsupportedOp(f"its input {value.name if value is not None else ''} is not constant")
        return self.constants[str(value.name)]

    def number_at(self, value: ir.Value | None, point: int) -> np.ndarray:
        """An input that is constant, or that follows from the lengths of a run, at one of the points."""
        known = self.numbers.get(str(required(value).name))
        return self.number(value) if known is None else known[point]

    def numbers_of(self, value: ir.Value | None) -> list[Size]:
        """Whole numbers that are constant or follow from the lengths of a run."""
        return self._each_fitted([self.number_at(value, point) for point in range(len(self.points))])

    def _each_fitted(self, arrays: Sequence[np.ndarray]) -> list[Size]:
        return [self.fitted(entry) for entry in zip(*(array.reshape(-1).tolist() for array in arrays), strict=True)]

    def limit(self, size: Size, most: int) -> None:
        """Let a size be no larger than a number."""
        if isinstance(size, SymExpr):
            constant = dict(size.terms).get((), 0)
            self.limits.append(Limit(size - constant, most - constant))

    def limit_places(self, value: ir.Value | None, count: int) -> None:
        """Let places that follow from lengths be less than a number, where they grow with these evenly."""
        name = str(required(value).name)
        if name in self.numbers:
            for size in self.numbers_of(value):
                self.limit(size, count - 1)
        elif name in self.largest and (largest := fit(self.points, self.largest[name])) is not None:
            self.limit(largest, count - 1)

    def fitted(self, numbers: Sequence[int]) -> Size:
        """What is these numbers at the points. Raises UnsupportedOp where that is no sum of lengths."""
        result: Size | None = fit(self.points, numbers)
        if result is None:
            raise UnsupportedOp(f"{', '.join(map(str, numbers))} is no sum of lengths")
        return result

    def add(
        self, kernel: KernelSource | CompiledKernel | PendingKernel, inputs: Sequence[str], output: str, layout: Layout
    ) -> str:
        """Append a kernel."""
        pending = kernel if isinstance(kernel, PendingKernel) else FixedKernel(self._compiled(kernel))
        self.steps.append(PendingStep(pending, tuple(inputs), output))
        self.layouts[output] = layout
        return output

    def apply(
        self,
        node: ir.Node,
        build: Callable[[Layout, Layout], KernelSource | PendingKernel],
        source: str | None = None,
        *,
        outer: int = 1,
        stored: bool = False,
        dtype: str | None = None,
    ) -> None:
        """Append the kernel that build makes of the layouts of a value and of the node's output.

        source: the value (default: the node's first input). outer: 0 for layouts with every axis of the first input
        and of the output, see `whole`. stored: whether the value may be of bfloat16. dtype: of the output
        (default: that of the value).
        """
        if not outer:
            self._apply_whole(node, build)
            return
        source = source or self.operand(node.inputs[0], stored=stored)
        x, shape = self.layouts[source], self.shape(node.outputs[0])
        row_major = x.row_major or not self.axes.lead(str(node.outputs[0].name))
        layout = Layout(shape, dtype or x.dtype, row_major=row_major)
        self.add(build(x, layout), [source], str(node.outputs[0].name), layout)

    def _apply_whole(self, node: ir.Node, build: Callable[[Layout, Layout], KernelSource | PendingKernel]) -> None:
        source, inputs = self.whole(node.inputs[0])
        self.add_whole(
            build(inputs, self.whole_output(node.outputs[0], inputs.dtype)), [source], [inputs], node.outputs[0]
        )

    def whole(self, value: ir.Value | None) -> tuple[str, Layout]:
        """The name of a value's buffer, and how that lies with every axis of the model's, the last one the fastest."""
        name = self.row_major(self.read(value))
        return name, Layout(self.sizes(value), self.layouts[name].dtype, row_major=True)

    def flat(self, value: ir.Value | None, outer: int) -> tuple[str, Layout]:
        """The same but for so many axes in front; see `Axes.outer`."""
        name, layout = self.whole(value)
        return name, replace(layout, shape=layout.shape[outer:])

    def whole_output(self, value: ir.Value, dtype: str) -> Layout:
        """The same of an output to be."""
        return Layout(self.sizes(value), dtype, row_major=True)

    def add_as(
        self, kernel: KernelSource | PendingKernel, inputs: Sequence[str], output: ir.Value, layout: Layout
    ) -> None:
        """Append a kernel that was written for a layout of the output that may have every axis."""
        self.add(kernel, inputs, str(output.name), replace(layout, shape=self.shape(output)))

    def add_whole(
        self, kernel: KernelSource | PendingKernel, inputs: Sequence[str], source: Sequence[Layout], output: ir.Value
    ) -> None:
        """Append a kernel between layouts as `whole` gives them, whose output has the type of the first one."""
        dtype = source[0].dtype
        written = (
            kernel.write(source, self.whole_output(output, dtype)) if isinstance(kernel, PendingKernel) else kernel
        )
        self.add(written, inputs, str(output.name), Layout(self.shape(output), dtype, row_major=True))

    def operand(self, value: ir.Value | None, *, stored: bool = False) -> str:
        """The name of a value's buffer that is no input of the model's. stored: perhaps of bfloat16."""
        return self.aligned([self.read(value, stored=stored)])[0]

    def real(self, value: ir.Value | None, *, stored: bool = False) -> str:
        """The name of a value's buffer. stored: perhaps of bfloat16.

        Raises UnsupportedOp where its elements are no real numbers in single precision.
        """
        if self.dtype(value) != "float32":
            raise UnsupportedOp(
                f"its input {required(value).name} is {self.dtype(value)}, and only float32 has a kernel"
            )
        return self.read(value, stored=stored)

    def aligned(self, names: Sequence[str]) -> list[str]:
        """The values in one order in memory: row-major if one of them is."""
        arrange = self.row_major if any(self.layout_of(name).row_major for name in names) else self.channels_last
        return [arrange(name) for name in names]

    def joinable(self, names: Sequence[str]) -> list[str]:
        """The same for what only moves runs of elements: inputs stay where they are if any value is row-major."""
        if any(self.layout_of(name).row_major for name in names):
            return [self.in_order(name) for name in names]
        return self.aligned(names)

    def read(self, value: ir.Value | None, *, stored: bool = False) -> str:
        """The name of a value's buffer; codes become real values, and bfloat16 too where that is not `stored`."""
        name = self._stored(value)
        if stored:
            return name
        layout = self.layouts[name]
        return self._copied(name, f"{name}@wide", replace(layout, dtype=layout.values))

    def in_bfloat16(self, value: ir.Value | None) -> str | None:
        """The name of a value's buffer of bfloat16; None where its elements have more digits."""
        if not self.is_bfloat16(required(value)):
            return None
        name = self.channels_last(self._stored(value))
        return self._copied(name, f"{name}@bfloat", replace(self.layouts[name], dtype=BFLOAT16))

    def is_bfloat16(self, value: ir.Value) -> bool:
        """Whether a value is rounded to bfloat16, or made of such values without computing."""
        name = str(value.name)
        if name not in self.bfloats:
            self.bfloats[name] = self._is_bfloat16(value.producer())
        return self.bfloats[name]

    def in_float8(self, value: ir.Value | None) -> tuple[str, np.float32] | None:
        """The name of a buffer with a value's codes of FP8, and their scale; None where its elements are others."""
        scale, node = self._scale_of_float8(value), required(value).producer()
        if scale is None or node is None:
            return None
        if node.op_type == "DequantizeLinear":
            return str(required(node.inputs[0]).name), scale
        name = self._stored(value)
        moved, layout = f"{name}@float8", replace(self.layouts[name], dtype="uint8", is_io=False)
        if moved not in self.layouts:
            self.add(self.to_float8(self.layouts[name], layout, float(scale), "recode_float8"), [name], moved, layout)
        return moved, scale

    def to_float8(self, x: Layout, y: Layout, scale: float, family: str = "quantize_float8") -> KernelSource:
        """Round real values to codes of FP8, where the target has these."""
        assert self.backend.float8 is not None
        return pointwise.quantize_float8(x, y, self.isa, scale, self.backend.float8.code, family)

    def _scale_of_float8(self, value: ir.Value | None) -> np.float32 | None:
        """That of a value rounded to FP8, or made of such values by moving them."""
        node = required(value).producer()
        if node is None:
            return None
        if node.op_type == "DequantizeLinear":
            return np.float32(params_of(node).scale) if is_float8(required(node.inputs[0])) else None
        if not keeps_codes(node) or clip_bounds(node) is not None:
            return None
        scales = {self._scale_of_float8(moved) for moved in data_inputs(node)}
        return scales.pop() if len(scales) == 1 else None

    def _is_bfloat16(self, node: ir.Node | None) -> bool:
        if node is None:
            return False
        if node.op_type == "Cast" and not node.domain:
            return required(node.inputs[0]).dtype == ir.DataType.BFLOAT16
        bounds = np.array(clip_bounds(node) or (0.0, 0.0), np.float32)
        moves = keeps_codes(node) and np.array_equal(to_bfloat16(bounds), bounds)
        return moves and all(self.is_bfloat16(moved) for moved in data_inputs(node))

    def _stored(self, value: ir.Value | None) -> str:
        """The name of a value's buffer, perhaps of bfloat16; codes become real values."""
        name = str(required(value).name)
        if name in self.layouts:
            return name
        node = required(value).producer()
        if node is not None and node.op_type == "DequantizeLinear" and name not in self.constants:
            return self._dequantize(node, name, is_io=False)
        return self._written(name)

    def _written(self, name: str) -> str:
        """A value that never changes, written by a kernel."""
        if name in self.numbers:
            return self._of_lengths(name)
        if name not in self.constants:
            raise UnsupportedOp(f"its input {name} follows from the batch size")
        array = self._of_one_sample(name)
        if not array.size:
            raise UnsupportedOp(f"{name} has no elements")
        layout = Layout(array.shape, str(array.dtype), row_major=True)
        return self.add(move.constant(layout, array, self.isa), [], name, layout)

    def _of_lengths(self, name: str) -> str:
        """Whole numbers that follow from lengths, written by a kernel."""
        arrays = self.numbers[name]
        shape = arrays[0].shape[self.axes.lead(name) :]
        layout = Layout(shape, str(arrays[0].dtype), row_major=True)
        return self.add(sizes.numbers(layout, self._each_fitted(arrays)), [], name, layout)

    def _of_one_sample(self, name: str) -> np.ndarray:
        """A value that never changes, for one sample."""
        array = self.constants[name]
        if self.axes.batch is None:
            return np.reshape(array, array.shape[int(array.shape[:1] == (1,)) :])
        if array.shape[:1] != (1,):
            raise UnsupportedOp(f"its input {name} differs from sample to sample")
        return np.asarray(array[0])

    def _dequantize(self, node: ir.Node, output: str, *, is_io: bool) -> str:
        """What a DequantizeLinear makes of codes."""
        source, params = self.read(node.inputs[0]), params_of(node)
        x = self.layouts[source]
        layout = Layout(x.shape, "float32", is_io, row_major=x.row_major and not is_io)
        if is_float8(required(node.inputs[0])):
            kernel = pointwise.dequantize_float8(x, layout, self.isa, params.scale)
        else:
            kernel = pointwise.dequantize(x, layout, self.isa, params.scale, params.zero_point)
        return self.add(kernel, [source], output, layout)

    def layout_of(self, name: str) -> Layout:
        """Layout of a value's buffer; a value that never changes gets one now."""
        return self.layouts[name if name in self.layouts else self._written(name)]

    def channels_last(self, name: str) -> str:
        """The value with its channels last."""
        return self._arranged(name, f"{name}@inside", replace(self.layout_of(name), is_io=False, row_major=False))

    def row_major(self, name: str) -> str:
        """The value with its last axis last."""
        return self._arranged(name, f"{name}@plain", replace(self.layout_of(name), is_io=False, row_major=True))

    def in_order(self, name: str) -> str:
        """The same for kernels that read nothing behind the last element: an input lies so, too."""
        return name if list(self.layouts[name].order) == sorted(self.layouts[name].order) else self.row_major(name)

    def _arranged(self, name: str, moved: str, wanted: Layout) -> str:
        layout = self.layouts[name]
        if not layout.is_io and layout.order == wanted.order:
            return name
        return self._copied(name, moved, wanted)

    def _copied(self, name: str, copy: str, wanted: Layout) -> str:
        if self.layouts[name] == wanted or copy in self.layouts:
            return name if self.layouts[name] == wanted else copy
        return self.add(pointwise.copy(self.layouts[name], wanted, self.isa), [name], copy, wanted)

    def padded(self, name: str, pads: Sequence[int], value: float) -> str:
        """A plane (channels, rows, columns) with a border; pads: top, left, bottom, right."""
        name = self.plane(self.channels_last(name))
        if not any(pads):
            return name
        channels, rows, columns = self.layouts[name].shape
        size = (channels, rows + pads[0] + pads[2], columns + pads[1] + pads[3])
        layout = Layout(size, self.layouts[name].dtype)
        border = f"{name}@{'_'.join(map(str, pads))}_{value:g}"
        if border in self.layouts:
            return border
        return self.add(Pad(self.isa, pads[0], pads[1], value), [name], border, layout)

    def plane(self, name: str) -> str:
        """A value of one spatial axis as a plane of one row, which is the same memory."""
        layout = self.layouts[name]
        if len(layout.shape) != 2:
            return name
        channels, columns = layout.shape
        plane = Layout((channels, 1, columns), layout.dtype)
        return self.add(pointwise.copy(plane, plane, self.isa), [name], f"{name}@plane", plane)

    def program(self, fixed: Mapping[str, np.ndarray], *, is_any: bool) -> Program:
        """All steps, with the graph's outputs as the model declares them.

        fixed: inputs that are always these. is_any: for any number of samples.
        """
        graph = self.lowered.model.graph
        for value in graph.outputs:
            self._give(value)
        inputs = tuple(str(value.name) for value in graph.inputs)
        outputs = tuple(_output_name(value) for value in graph.outputs)
        names = {_output_name(value): str(value.name) for value in graph.outputs}
        pending, layouts = fused(self.steps, self.layouts, outputs)
        steps = tuple(self._step(step, layouts, names.get(step.output, step.output)) for step in pending)
        declared = {} if is_any else {str(value.name): self.sizes(value) for value in graph.inputs}
        declared |= {} if is_any else {_output_name(value): self.sizes(value) for value in graph.outputs}
        return Program(steps, layouts, inputs, outputs, names, declared, fixed, self.lengths, narrowest(self.limits))

    def _compiled(self, kernel: KernelSource | CompiledKernel) -> CompiledKernel:
        return kernel.compile(self.backend.loops) if isinstance(kernel, KernelSource) else kernel

    def _step(self, step: PendingStep, layouts: Mapping[str, Layout], value: str) -> ProgramStep:
        """The step with its kernel. value: what the lowered graph calls its output."""
        kernel = self._compiled(step.pending.write([layouts[name] for name in step.inputs], layouts[step.output]))
        return ProgramStep(kernel, step.inputs, step.output, value, step.placed, step.within)

    def _give(self, value: ir.Value) -> None:
        """The value as the model declares it; codes that nobody else wants as real values become those on the way.

        Raises UnsupportedOp where it has no batch in front, as values that never change may not.
        """
        self.axes.lead(str(value.name))
        maker = value.producer()
        if maker is not None and maker.op_type == "DequantizeLinear" and not value.uses() and not self._has(value):
            self._dequantize(maker, _output_name(value), is_io=True)
            return
        name = self.read(value)
        layout = Layout(self.layouts[name].shape, self.layouts[name].dtype, is_io=True)
        self.add(OutputCopy(self.isa), [name], _output_name(value), layout)

    def _has(self, value: ir.Value) -> bool:
        return value.name in self.layouts or value.name in self.constants


def is_float8(value: ir.Value) -> bool:
    """Whether a value is codes of FP8."""
    return value.dtype == ir.DataType.FLOAT8E4M3FN


def _output_name(value: ir.Value) -> str:
    return f"{value.name}@outside"
