"""From kernels to one library: a Relax module with `prepare` (constants, unpacked) and `main` (one run), linked."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ptqc.codegen.tvm import constants
from ptqc.codegen.tvm.constants import Scaled, Stored
from ptqc.codegen.tvm.families import Built, unpack
from ptqc.codegen.tvm.isa import Isa
from ptqc.codegen.tvm.layout import Layout


@dataclass(frozen=True)
class Step:
    """One kernel of the network: names of the values it reads and of the one it makes."""

    built: Built
    inputs: tuple[str, ...]
    output: str


@dataclass(frozen=True)
class Program:
    """All steps in order, and the layout of every value."""

    steps: tuple[Step, ...]
    layouts: dict[str, Layout]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def module(program: Program) -> Any:
    """The Relax module of a program."""
    import tvm

    builder = tvm.relax.BlockBuilder()
    kernels: dict[str, Any] = {}

    def kernel(name: str, function: Any) -> Any:
        if name not in kernels:
            kernels[name] = builder.add_func(function, name)
        return kernels[name]

    ready = _prepare(builder, kernel, program)
    _main(builder, kernel, program, ready)
    return builder.finalize()


def _prepare(builder: Any, kernel: Any, program: Program) -> list[Any]:
    """Emit `prepare`; the types of what it returns."""
    from tvm import relax

    with builder.function("prepare", params=[]):
        found = [_ready(builder, kernel, constant) for step in program.steps for constant in step.built.constants]
        builder.emit_func_output(builder.emit(relax.Tuple(found)) if found else relax.Tuple([]))
    return [value.ty for value in found]


def _ready(builder: Any, kernel: Any, constant: Stored) -> Any:
    """A constant as kernels take it."""
    from tvm import relax

    if isinstance(constant, Scaled):
        codes = _ready(builder, kernel, constant.codes)
        name, function = unpack.real(constant.panels, constant.depth, constant.width)
        sizes = relax.TensorType((constant.codes.size,), "float32")
        return builder.emit(relax.call_tir(kernel(name, function), [codes, relax.const(constant.scale)], sizes))
    bits = constants.bits_of(constant) if constant.dtype == np.int8 else 8
    if bits == 8 or constant.size % 8:
        return builder.emit(relax.const(constant))
    name, function = unpack.codes(bits, constant.size)
    planes = [relax.const(plane) for plane in constants.pack(constant, bits)]
    return builder.emit(relax.call_tir(kernel(name, function), planes, relax.TensorType((constant.size,), "int8")))


def _main(builder: Any, kernel: Any, program: Program, ready: Sequence[Any]) -> None:
    from tvm import relax, tirx

    batch = tirx.Var("batch", "int64")
    values = {name: relax.Var(name, _type(program.layouts[name], batch)) for name in program.inputs}
    parameters = [*values.values(), relax.Var("constants", relax.TupleType(list(ready)))]
    with builder.function("main", params=parameters):
        given = iter(range(len(ready)))
        for step in program.steps:
            own = [builder.emit(relax.TupleGetItem(parameters[-1], next(given))) for _ in step.built.constants]
            call = relax.call_tir(
                kernel(step.built.name, step.built.function),
                [*(values[name] for name in step.inputs), *own],
                _type(program.layouts[step.output], batch),
            )
            values[step.output] = builder.emit(call)
        builder.emit_func_output(relax.Tuple([values[name] for name in program.outputs]))


def _type(layout: Layout, batch: Any) -> Any:
    from tvm import relax

    shape = layout.shape if layout.outside else (layout.stride,)
    return relax.TensorType((batch, *shape), layout.dtype)


def link(program: Program, isa: Isa, path: Path) -> None:
    """Compile a program and write the library."""
    import tvm

    target = tvm.target.Target(isa.target)
    executable = tvm.relax.build(module(program), target=target)
    executable.export_library(str(path), fcompile=_link)


def _link(output: str, objects: Sequence[str], options: Sequence[str] | None = None, **_: Any) -> None:
    """Link with nothing in the file that depends on folders or times; the order of TVM's shape code may still vary."""
    compiler = os.environ.get("CXX", "g++")
    flags = ["-shared", "-fPIC", "-O2", "-ffp-contract=off", "-Wl,--build-id=none", "-s"]
    folder = Path(objects[0]).parent
    relative = [os.path.relpath(name, folder) for name in objects]
    command = [compiler, *flags, *(options or ()), "-o", str(Path(output).resolve()), *relative]
    subprocess.run(command, cwd=folder, check=True)
