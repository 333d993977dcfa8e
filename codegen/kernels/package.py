"""From kernels to the module of a library, which targets compile.

Its functions: `prepare` unpacks the constants out of the file of weights, `workspace` makes the memory of a run,
`main` runs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ptqc.codegen.kernels.families import unpack
from ptqc.codegen.kernels.writing import KernelSource, Loops
from ptqc.codegen.program.constants import Arranged, BfloatCodes, InOrder, Nibbles, ScaledPanels, Stored
from ptqc.codegen.program.indexed import Indexed
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.memory import Memory, plan
from ptqc.codegen.program.program import CompiledKernel, Program, Weights
from ptqc.runtime.lengths import Size, varies

BYTE = 8


def module(program: Program, weights: Weights, loops: Loops) -> Any:
    """The Relax module of a program; its constants are added to `weights`. loops: of the kernels that unpack these."""
    import tvm

    builder = tvm.relax.BlockBuilder()
    kernels: dict[str, Any] = {}

    def kernel(called: KernelSource | CompiledKernel) -> Any:
        compiled = called.compile(loops) if isinstance(called, KernelSource) else called
        if compiled.name not in kernels:
            kernels[compiled.name] = builder.add_func(compiled.function, compiled.name)
        return kernels[compiled.name]

    ready = _prepare(builder, kernel, program, weights, loops)
    _workspace(builder, kernel, program)
    _main(builder, kernel, program, ready)
    return builder.finalize()


def _prepare(builder: Any, kernel: Any, program: Program, weights: Weights, loops: Loops) -> list[Any]:
    """Emit `prepare`; the types of what it returns."""
    from tvm import relax, tirx

    file = relax.Var("weights", relax.TensorType(None, "uint8", ndim=1))

    def stored(array: np.ndarray) -> Any:
        dtype, first = str(array.dtype), weights.place(array) // array.itemsize
        result = _allocate(builder, relax.TensorType((array.size,), dtype))
        arguments = [file, result, tirx.IntImm("int64", first)]
        builder.emit(relax.Call(kernel(unpack.part(dtype, loops)), arguments, ty_args=[relax.TupleType([])]))
        return result

    def call(unpacking: KernelSource, arguments: Sequence[Any], size: int, dtype: str) -> Any:
        return builder.emit(relax.call_tir(kernel(unpacking), arguments, relax.TensorType((size,), dtype)))

    with builder.function("prepare", params=[file], pure=False):
        constants = [constant for step in program.steps for constant in step.kernel.constants]
        results = [ready(call, stored, constant) for constant in constants]
        builder.emit_func_output(builder.emit(relax.Tuple(results)) if results else relax.Tuple([]))
    return [value.ty for value in results]


def ready(call: Callable[..., Any], stored: Callable[[np.ndarray], Any], constant: Stored) -> Any:
    """A constant as kernels take it."""
    match constant:
        case ScaledPanels():
            unpacking = unpack.real(constant.panels, constant.depth, constant.width)
            inputs = [ready(call, stored, constant.codes), stored(constant.scale)]
            return call(unpacking, inputs, constant.codes.size, "float32")
        case BfloatCodes():
            inputs = [ready(call, stored, constant.codes)]
            return call(unpack.bfloats(constant.codes.size), inputs, constant.codes.size, "uint16")
        case Nibbles():
            codes = constant.codes
            inputs = [ready(call, stored, codes), stored(constant.places), stored(constant.table)]
            return call(unpack.nibbles(codes.size, constant.vector), inputs, constant.size, "uint8")
        case Arranged():
            indexed = constant.indexed
            index, count = _indices(call, stored, indexed)
            levels = [] if indexed.levels is None else [stored(indexed.levels.reshape(-1))]
            return call(unpack.codes(indexed, count, constant.order), [index, *levels], constant.size, "int8")
        case InOrder():
            return stored(constant.data)
        case _:
            return stored(constant)


def _indices(call: Callable[..., Any], stored: Callable[[np.ndarray], Any], indexed: Indexed) -> tuple[Any, int]:
    """Indices of codes and their number, padding included."""
    inputs = [stored(plane) for plane in indexed.planes]
    if indexed.bits == BYTE:
        return inputs[0], indexed.planes[0].size
    count = sum(plane.size for plane in indexed.planes) * BYTE // indexed.bits
    index = call(unpack.indices(indexed.bits, count), inputs, count, "uint8")
    if indexed.nonzero is None:
        return index, count
    size = indexed.nonzero.bits.size * BYTE
    bits = call(unpack.indices(1, size), [stored(indexed.nonzero.bits)], size, "uint8")
    spread = [bits, stored(indexed.nonzero.starts), index]
    return call(unpack.places(size, count), spread, size, "uint8"), size


class _Sizes:
    """The sizes of one function of a program: its batch, its lengths, and what is made of those by a kernel.

    TVM itself would compute sizes in an order that varies, so that the bytes of a library would. computed: by the
    sizes of which each is the largest.
    """

    def __init__(self, program: Program, memory: Memory) -> None:
        from tvm import tirx

        self.batch = 1 if program.sizes else tirx.Var("batch", "int64")
        self._lengths = {length.name: tirx.Var(length.name, "int64") for length in program.lengths}
        self.computed = {
            sizes: tirx.Var(f"size{place}", "int64") for place, sizes in enumerate(_computed_sizes(program, memory))
        }
        self._open = 0

    def __call__(self, *sizes: Size) -> Any:
        """The largest of some sizes."""
        if len(sizes) == 1 and isinstance(sizes[0], int):
            return sizes[0]
        return self.computed[sizes] if sizes in self.computed else self._lengths[str(sizes[0])]

    def input_size(self, size: Size) -> Any:
        """The size of an axis of an input, of which only lengths are known."""
        from tvm import tirx

        if isinstance(size, int) or str(size) in self._lengths:
            return self(size)
        self._open += 1
        return tirx.Var(f"given{self._open}", "int64")

    def lengths(self, names: Sequence[str]) -> list[Any]:
        """Lengths as arguments of kernels."""
        from tvm import relax

        return [relax.prim_value(self._lengths[name]) for name in names]

    def emit(self, builder: Any, kernel: Any, numbers: Any) -> None:
        """Emit the call that computes sizes into a tensor of `numbers`."""
        from tvm import relax

        arguments = [numbers, *self.lengths(list(self._lengths))]
        builder.emit(relax.Call(kernel, arguments, ty_args=[relax.TupleType([])]))
        result = builder.emit(relax.op.tensor_to_shape(numbers))
        builder.match_cast(result, relax.ShapeType(list(self.computed.values())))


def _computed_sizes(program: Program, memory: Memory) -> list[tuple[Size, ...]]:
    """Sizes that have to be computed: all that vary and are no lengths."""
    layouts = program.layouts
    used = [size for step in program.steps for name in (*step.inputs, step.output) for size in layouts[name].axes]
    used += [size for name in (*program.inputs, *program.outputs) for size in layouts[name].axes]
    used += [size for shape in program.sizes.values() for size in shape]
    names = {length.name for length in program.lengths}
    results = [*((size,) for size in used), *memory.sizes]
    return [
        sizes for sizes in dict.fromkeys(results) if varies(sizes) and not (len(sizes) == 1 and str(*sizes) in names)
    ]


def _main(builder: Any, kernel: Any, program: Program, ready: Sequence[Any]) -> None:
    """Emit `main`: inputs, what `prepare` returned and what `workspace` returned give the outputs."""
    from tvm import relax

    memory = plan(program)
    sizes = _Sizes(program, memory)
    inputs = {name: relax.Var(name, _input(program, name, sizes)) for name in program.inputs}
    # Of any size: what was made for a large batch serves a small one.
    slots = [relax.TensorType(None, "uint8", ndim=2) for _ in memory.sizes]
    numbers = [relax.TensorType((len(sizes.computed),), "int64")] if sizes.computed else []
    constants = relax.Var("constants", relax.TupleType(list(ready)))
    workspace = relax.Var("workspace", relax.TupleType([*slots, *numbers]))
    with builder.function("main", params=[*inputs.values(), constants, workspace], pure=False):
        if sizes.computed:
            room = builder.emit(relax.TupleGetItem(workspace, len(slots)))
            sizes.emit(builder, kernel(_sizes_kernel(program, sizes)), room)
        values = {name: _viewed(builder, value, _type(program.layouts[name], sizes)) for name, value in inputs.items()}
        rooms = [builder.emit(relax.TupleGetItem(workspace, slot)) for slot in range(len(memory.sizes))]
        places = iter(range(len(ready)))
        for step in program.steps:
            kind = _type(program.layouts[step.output], sizes)
            own = [builder.emit(relax.TupleGetItem(constants, next(places))) for _ in step.kernel.constants]
            arguments = [*(values[name] for name in step.arguments), *own]
            room = rooms[memory.slots[step.output]] if step.output in memory.slots else None
            called, lengths = kernel(step.kernel), sizes.lengths(step.kernel.lengths)
            values[step.output] = _call(builder, called, arguments, kind, room, lengths)
        outputs = [_viewed(builder, values[name], _output(program, name, sizes)) for name in program.outputs]
        builder.emit_func_output(relax.Tuple(outputs))


def _sizes_kernel(program: Program, sizes: _Sizes) -> KernelSource:
    """The kernel that computes sizes."""
    from ptqc.codegen.kernels.families import sizes as family

    return family.computed(list(sizes.computed), [length.name for length in program.lengths])


def _input(program: Program, name: str, sizes: _Sizes) -> Any:
    from tvm import relax

    layout = program.layouts[name]
    shape = program.sizes.get(name, (None, *layout.axes))
    return relax.TensorType([sizes.batch if size is None else sizes.input_size(size) for size in shape], layout.stored)


def _output(program: Program, name: str, sizes: _Sizes) -> Any:
    from tvm import relax

    layout = program.layouts[name]
    if not program.sizes:
        return _type(layout, sizes)
    return relax.TensorType([sizes(size) for size in program.sizes[name]], layout.dtype)


def _viewed(builder: Any, value: Any, kind: Any) -> Any:
    """The same memory with other axes, where they are others."""
    from tvm import relax

    if len(value.ty.shape.values) == len(kind.shape.values):  # of the same memory, so only ones in front can differ
        return value
    return builder.emit(relax.op.memory.view(value, kind.shape, kind.dtype))


def _call(builder: Any, kernel: Any, arguments: Sequence[Any], kind: Any, room: Any, lengths: Sequence[Any]) -> Any:
    """Emit a call that writes to the slot `room`, or to new memory where there is none."""
    from tvm import relax

    if room is None:
        output = _allocate(builder, kind)
    else:
        output = builder.emit(relax.op.memory.view(room, kind.shape, kind.dtype))
    builder.emit(relax.Call(kernel, [*arguments, output, *lengths], ty_args=[relax.TupleType([])]))
    return output


def _workspace(builder: Any, kernel: Any, program: Program) -> None:
    """Emit `workspace`: the memory that `main` needs for inputs like those given."""
    from tvm import relax

    memory = plan(program)
    sizes = _Sizes(program, memory)
    inputs = [relax.Var(name, _input(program, name, sizes)) for name in program.inputs]
    with builder.function("workspace", params=inputs, pure=not sizes.computed):
        numbers = [_allocate(builder, relax.TensorType((len(sizes.computed),), "int64"))] if sizes.computed else []
        for room in numbers:
            sizes.emit(builder, kernel(_sizes_kernel(program, sizes)), room)
        kinds = [relax.TensorType((sizes.batch, sizes(*result)), "uint8") for result in memory.sizes]
        builder.emit_func_output(builder.emit(relax.Tuple([*(_allocate(builder, kind) for kind in kinds), *numbers])))


def _allocate(builder: Any, kind: Any) -> Any:
    """Emit an allocation without a product of sizes: TVM computes those in an order that varies."""
    from tvm.relax.op import vm

    dtype = str(kind.dtype)
    storage = builder.emit(vm.alloc_storage(kind.shape, 0, dtype))
    return builder.emit(vm.alloc_tensor(storage, 0, kind.shape, dtype))


def _type(layout: Layout, sizes: _Sizes) -> Any:
    from tvm import relax

    return relax.TensorType((sizes.batch, *map(sizes, layout.axes)), layout.stored)
