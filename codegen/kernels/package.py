"""From kernels to the module of a library, which targets compile.

Its functions: `prepare` unpacks the constants out of the file of weights, `workspace` makes the memory of a run,
`main` runs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ptqc.codegen.kernels.families import unpack
from ptqc.codegen.program.constants import Arranged, BfloatCodes, InOrder, Nibbles, ScaledPanels, Stored
from ptqc.codegen.program.indexed import Indexed
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.memory import plan
from ptqc.codegen.program.program import Program
from ptqc.codegen.program.weights import Weights

BYTE = 8


def module(program: Program, weights: Weights) -> Any:
    """The Relax module of a program; its constants are added to `weights`."""
    import tvm

    builder = tvm.relax.BlockBuilder()
    kernels: dict[str, Any] = {}

    def kernel(name: str, function: Any) -> Any:
        if name not in kernels:
            kernels[name] = builder.add_func(function, name)
        return kernels[name]

    ready = _prepare(builder, kernel, program, weights)
    _workspace(builder, program)
    _main(builder, kernel, program, ready)
    return builder.finalize()


def _prepare(builder: Any, kernel: Any, program: Program, weights: Weights) -> list[Any]:
    """Emit `prepare`; the types of what it returns."""
    from tvm import relax, tirx

    file = relax.Var("weights", relax.TensorType(None, "uint8", ndim=1))

    def stored(array: np.ndarray) -> Any:
        dtype, first = str(array.dtype), weights.place(array) // array.itemsize
        made = _allocate(builder, relax.TensorType((array.size,), dtype))
        arguments = [file, made, tirx.IntImm("int64", first)]
        builder.emit(relax.Call(kernel(*unpack.part(dtype)), arguments, ty_args=[relax.TupleType([])]))
        return made

    with builder.function("prepare", params=[file], pure=False):
        constants = [constant for step in program.steps for constant in step.built.constants]
        found = [_ready(builder, kernel, stored, constant) for constant in constants]
        builder.emit_func_output(builder.emit(relax.Tuple(found)) if found else relax.Tuple([]))
    return [value.ty for value in found]


def _ready(builder: Any, kernel: Any, stored: Callable[[np.ndarray], Any], constant: Stored) -> Any:
    """A constant as kernels take it."""
    from tvm import relax

    def call(made: tuple[str, Any], arguments: Sequence[Any], size: int, dtype: str) -> Any:
        return builder.emit(relax.call_tir(kernel(*made), arguments, relax.TensorType((size,), dtype)))

    match constant:
        case ScaledPanels():
            made = unpack.real(constant.panels, constant.depth, constant.width)
            given = [_ready(builder, kernel, stored, constant.codes), stored(constant.scale)]
            return call(made, given, constant.codes.size, "float32")
        case BfloatCodes():
            given = [_ready(builder, kernel, stored, constant.codes)]
            return call(unpack.bfloats(constant.codes.size), given, constant.codes.size, "uint16")
        case Nibbles():
            codes = constant.codes
            given = [_ready(builder, kernel, stored, codes), stored(constant.places), stored(constant.table)]
            return call(unpack.nibbles(codes.size, constant.vector), given, constant.size, "uint8")
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
    given = [stored(plane) for plane in indexed.planes]
    if indexed.bits == BYTE:
        return given[0], indexed.planes[0].size
    count = sum(plane.size for plane in indexed.planes) * BYTE // indexed.bits
    index = call(unpack.indices(indexed.bits, count), given, count, "uint8")
    if indexed.kept is None:
        return index, count
    size = indexed.kept.bits.size * BYTE
    bits = call(unpack.indices(1, size), [stored(indexed.kept.bits)], size, "uint8")
    spread = [bits, stored(indexed.kept.starts), index]
    return call(unpack.places(size, count), spread, size, "uint8"), size


def _main(builder: Any, kernel: Any, program: Program, ready: Sequence[Any]) -> None:
    """Emit `main`: inputs, what `prepare` returned and what `workspace` returned give the outputs."""
    from tvm import relax

    batch, memory = _batch(program), plan(program)
    given = {name: relax.Var(name, _declared(program, name, batch)) for name in program.inputs}
    # Of any size: what was made for a large batch serves a small one.
    slots = relax.TupleType([relax.TensorType(None, "uint8", ndim=2) for _ in memory.sizes])
    constants, workspace = relax.Var("constants", relax.TupleType(list(ready))), relax.Var("workspace", slots)
    with builder.function("main", params=[*given.values(), constants, workspace], pure=False):
        values = {name: _viewed(builder, value, _type(program.layouts[name], batch)) for name, value in given.items()}
        rooms = [builder.emit(relax.TupleGetItem(workspace, slot)) for slot in range(len(memory.sizes))]
        numbers = iter(range(len(ready)))
        for step in program.steps:
            kind = _type(program.layouts[step.output], batch)
            own = [builder.emit(relax.TupleGetItem(constants, next(numbers))) for _ in step.built.constants]
            arguments = [*(values[name] for name in step.arguments), *own]
            room = rooms[memory.slots[step.output]] if step.output in memory.slots else None
            values[step.output] = _call(builder, kernel(step.built.name, step.built.function), arguments, kind, room)
        made = [_viewed(builder, values[name], _declared(program, name, batch)) for name in program.outputs]
        builder.emit_func_output(relax.Tuple(made))


def _batch(program: Program) -> Any:
    """How many samples: as many as are given, or one run."""
    from tvm import tirx

    return 1 if program.sizes else tirx.Var("batch", "int64")


def _declared(program: Program, name: str, batch: Any) -> Any:
    """The type of an input or output as the model declares it."""
    from tvm import relax

    layout = program.layouts[name]
    return relax.TensorType(program.sizes[name], layout.dtype) if program.sizes else _type(layout, batch)


def _viewed(builder: Any, value: Any, kind: Any) -> Any:
    """The same memory with other axes, where they are others."""
    from tvm import relax

    if len(value.ty.shape.values) == len(kind.shape.values):  # of the same memory, so only ones in front can differ
        return value
    return builder.emit(relax.op.memory.view(value, kind.shape, kind.dtype))


def _call(builder: Any, kernel: Any, arguments: Sequence[Any], kind: Any, room: Any) -> Any:
    """Emit a call that writes to the slot `room`, or to new memory where there is none."""
    from tvm import relax

    if room is None:
        output = _allocate(builder, kind)
    else:
        output = builder.emit(relax.op.memory.view(room, kind.shape, kind.dtype))
    builder.emit(relax.Call(kernel, [*arguments, output], ty_args=[relax.TupleType([])]))
    return output


def _workspace(builder: Any, program: Program) -> None:
    """Emit `workspace`: the memory that `main` needs for inputs like those given."""
    from tvm import relax

    batch = _batch(program)
    inputs = [relax.Var(name, _declared(program, name, batch)) for name in program.inputs]
    with builder.function("workspace", params=inputs):
        kinds = [relax.TensorType((batch, size), "uint8") for size in plan(program).sizes]
        builder.emit_func_output(builder.emit(relax.Tuple([_allocate(builder, kind) for kind in kinds])))


def _allocate(builder: Any, kind: Any) -> Any:
    """Emit an allocation without a product of sizes: TVM computes those in an order that varies."""
    from tvm.relax.op import vm

    dtype = str(kind.dtype)
    storage = builder.emit(vm.alloc_storage(kind.shape, 0, dtype))
    return builder.emit(vm.alloc_tensor(storage, 0, kind.shape, dtype))


def _type(layout: Layout, batch: Any) -> Any:
    from tvm import relax

    return relax.TensorType((batch, *layout.axes), layout.stored)
