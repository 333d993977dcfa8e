"""One kernel of every family through TVM's C target, built with address and undefined-behaviour sanitizers.

`python sanitized.py build FOLDER` writes the library and its inputs; `python sanitized.py run FOLDER`, with the
sanitizer's runtime preloaded, runs each kernel on buffers of exactly the declared size and compares with what `build`
expects. Then a process that is forked gives kernels outputs that are too small; how that ended is printed.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from ptqc.utils.store import write_npz

# Compiling takes most of the time; what is checked are accesses and operations, which no optimization adds.
FLAGS = ["-g", "-O0", "-ffp-contract=off", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def build(folder: Path) -> None:
    """Kernels of all families on odd shapes: primes, one channel, groups, borders."""
    import tvm

    from ptqc.codegen.cpu import isa
    from ptqc.codegen.kernels.backend import LayerSpec
    from ptqc.codegen.kernels.epilogue import Epilogue, Lookup, Requantization, Sum
    from ptqc.codegen.kernels.families import dense, depthwise, functions, matmul, move, pointwise, pool, rows
    from ptqc.codegen.kernels.families.real_stages import Beside, RealStage, WithVector
    from ptqc.codegen.kernels.tiling import Dense
    from ptqc.codegen.kernels.writing import PROCESSOR, KernelSource
    from ptqc.codegen.program.constants import Arranged
    from ptqc.codegen.program.layout import BFLOAT16, ROUNDED, Frame, Layout
    from ptqc.codegen.program.program import Window

    plain = isa.C
    random = np.random.default_rng(0)

    def codes(*shape: int) -> np.ndarray:
        return random.integers(-64, 64, shape).astype(np.int8)

    x, real, other = Layout((6, 7, 5), "uint8"), Layout((6, 7, 5), "float32"), Layout((6, 7, 5), "uint8", is_io=True)
    matrix, square, column = (Layout(shape, "float32", row_major=True) for shape in ((5, 7), (7, 7), (7,)))
    tokens = Layout((5,), "int64", is_io=True)
    full, grouped = Window(6, (7, 5), (3, 2), (2, 1), (1, 2)), Window(6, (7, 5), (3, 3))
    dense_out = Layout((5, *full.output), "uint8")
    wide, half, each = (Layout((6, *grouped.output), kind) for kind in ("uint8", "float32", "uint8"))
    numbers = np.ones(6, np.float32)
    framed, bordered = replace(dense_out, parent_buffer=Frame((7, 6, 5), (1, 2, 1))), Layout((6, 9, 8), "uint8")
    placed, twice = (
        replace(x, parent_buffer=Frame((6, 9, 8), (0, 1, 2))),
        replace(x, shape=(12, 7, 5), parent_buffer=Frame((13, 8, 6))),
    )
    inside, around = (
        replace(real, parent_buffer=Frame((6, 9, 8), (0, 1, 2))),
        replace(half, parent_buffer=Frame((7, 8, 9), (1, 2, 1))),
    )
    brief, bordered_brief, brief_half = (replace(v, dtype=BFLOAT16) for v in (real, bordered, half))
    gates = [functions.Function("LeakyRelu", (0.1,)), functions.Function("Sigmoid", is_gate=True)]
    stages = Epilogue((Lookup(np.arange(256)[::-1]), Sum(np.array([0.5, 0.25, 3]), 1, dense_out)))
    part, stretched = Layout((2, 3, 5), "uint8"), Layout((6, 2, 9), "uint8")
    beside: list[RealStage] = [WithVector("Add", 0, np.ones(6)), Beside("Sub", 1, other=half), *gates]
    loops_to_real, rounded = Dense(grouped, 6, 1, plain, 1), replace(matrix, dtype="uint8")
    places = [np.arange(6), np.array([6, 0]), np.arange(9) // 2]
    loops, groups = Dense(full, 5, 1, plain, 1), Dense(grouped, 6, 2, plain, 4)
    five, six = (Requantization(some, some / 99, 3) for some in (numbers[:5], numbers))
    kernels: list[tuple[KernelSource, list[Layout], Layout]] = [
        (
            dense.integer(LayerSpec(x, dense_out, full, codes(5, 6, 3, 2), five), loops),
            [x],
            dense_out,
        ),
        (
            dense.integer(LayerSpec(placed, framed, full, codes(5, 6, 3, 2), five, stages), loops),
            [placed, dense_out],
            framed,
        ),
        (move.border(placed, bordered, 4.0, plain), [], bordered),
        (move.concat([x, x], twice, 0, plain, {0}), [x], twice),
        (move.strided(x, part, (1, 6, 0), (1, -2, 1), plain), [x], part),
        (move.nearest(x, stretched, places, plain), [x], stretched),
        (dense.real(real, half, groups, codes(6, 3, 3, 3), numbers), [real], half),
        (dense.real(inside, around, groups, codes(6, 3, 3, 3), numbers, gates), [inside], around),
        (dense.integer(LayerSpec(x, half, grouped, codes(6, 6, 3, 3), six), loops_to_real, beside), [x, half], half),
        (
            pointwise.with_vector("mul", matrix, rounded, plain, np.ones(7), lambda a, b: a * b, (0.1, 7)),
            [matrix],
            rounded,
        ),
        (
            depthwise.integer(LayerSpec(x, wide, grouped, codes(6, 3, 3), six), plain),
            [x],
            wide,
        ),
        (depthwise.real(real, half, grouped, plain, codes(6, 3, 3), numbers), [real], half),
        (depthwise.real(inside, around, grouped, plain, codes(6, 3, 3), numbers, gates), [inside], around),
        (pointwise.add([x, x], x, plain, np.array([0.5, 0.25, 3.0], np.float32)), [x, x], x),
        (pointwise.mul([x, x], x, plain, (3, 4, 5), 0.01), [x, x], x),
        (pointwise.table(x, x, plain, np.arange(256)[::-1]), [x], x),
        (pointwise.limit(x, x, plain, 9, 99), [x], x),
        (pointwise.quantize(real, other, plain, 0.1, 7), [real], other),
        (pointwise.dequantize(other, real, plain, 0.1, 7), [other], real),
        (pool.largest(x, each, grouped, plain), [x], each),
        (pool.mean_codes(x, Layout((6, 1, 1), "uint8"), plain, (1, 2), 0.02), [x], Layout((6, 1, 1), "uint8")),
        (pool.mean(real, Layout((6, 1, 1), "float32"), plain), [real], Layout((6, 1, 1), "float32")),
        (move.pad(x, Layout((6, 9, 8), "uint8"), (0, 1, 2), 4.0, plain), [x], Layout((6, 9, 8), "uint8")),
        (move.transpose(x, Layout((5, 6, 7), "uint8"), (2, 0, 1)), [x], Layout((5, 6, 7), "uint8")),
        (move.concat([x, x], Layout((12, 7, 5), "uint8"), 0, plain), [x, x], Layout((12, 7, 5), "uint8")),
        (move.look_up(tokens, matrix, [np.ones((3, matrix.shape[1]), np.float32)], 3), [tokens], matrix),
        (functions.unary([functions.Function("Sigmoid")], real, real, plain), [real], real),
        (functions.unary([functions.Function("Exp")], real, real, plain), [real], real),
        (functions.unary([functions.Function("Erf")], real, real, plain), [real], real),
        (functions.unary([functions.Function(ROUNDED)], real, brief, plain), [real], brief),
        (functions.unary([functions.Function("Relu"), functions.Function(ROUNDED)], brief, real, plain), [brief], real),
        (pointwise.copy(brief, real, plain), [brief], real),
        (move.pad(brief, bordered_brief, (0, 1, 2), 0.0, plain), [brief], bordered_brief),
        (depthwise.real(brief, half, grouped, plain, codes(6, 3, 3), numbers), [brief], half),
        (depthwise.real(real, brief_half, grouped, plain, codes(6, 3, 3), numbers), [real], brief_half),
        (functions.binary("Div", [real, real], real, plain), [real, real], real),
        (functions.binary("Sub", [real], real, plain, (0, np.ones((6, 1, 1)))), [real], real),
        (pool.average(real, half, grouped, plain, np.full(grouped.output, 9)), [real], half),
        (rows.softmax(matrix, matrix, plain, 1, logarithm=False), [matrix], matrix),
        (rows.softmax(matrix, matrix, plain, 0, logarithm=True), [matrix], matrix),
        (rows.softmax_codes(x, x, plain, 2, np.ones(256, np.float32), 255, 3, in_float64=False), [x], x),
        (rows.softmax_codes(x, x, plain, 2, np.ones(256, np.float32), 255, 3, in_float64=True), [x], x),
        (rows.normalize(matrix, matrix, plain, 1, 1e-5, np.ones(7), np.ones(7)), [matrix], matrix),
        (rows.fold("ReduceMax", matrix, column, plain, 0, 0), [matrix], column),
        (matmul.real(matrix, square, matrix, plain), [matrix, square], matrix),
    ]
    compiled = [kernel.compile(PROCESSOR) for kernel, _, _ in kernels]
    functions_by_name = {kernel.name: kernel.function for kernel in compiled}
    library = tvm.tirx.build(tvm.IRModule(functions_by_name), target=tvm.target.Target({"kind": "c"}))
    library.export_library(str(folder / "kernels.so"), options=FLAGS)
    arrays, calls = {}, []
    for index, (kernel, (_, inputs, output)) in enumerate(zip(compiled, kernels, strict=True)):
        shapes = [(2, *layout.shape) if layout.is_io else (2, layout.stride) for layout in (*inputs, output)]
        for place, (layout, shape) in enumerate(zip(inputs, shapes, strict=False)):
            made = random.integers(0, 256, shape) if layout.dtype == "uint8" else random.normal(size=shape)
            arrays[f"{index}/{place}"] = layout.encoded(made)
        for place, constant in enumerate(kernel.constants):
            arrays[f"{index}/{len(inputs) + place}"] = (
                constant.order(constant.codes) if isinstance(constant, Arranged) else np.asarray(constant)
            )
        calls.append([kernel.name, len(inputs) + len(kernel.constants), shapes[-1], output.stored])
    write_npz(folder / "arrays.npz", arrays)
    (folder / "calls.json").write_text(json.dumps(calls))


def run(folder: Path, *, too_small: bool) -> None:
    """Call every kernel."""
    import ctypes
    from importlib.util import find_spec

    import tvm_ffi

    spec = find_spec("tvm")
    assert spec is not None
    assert spec.submodule_search_locations
    ctypes.CDLL(str(Path(spec.submodule_search_locations[0]) / "lib" / "libtvm_runtime.so"), ctypes.RTLD_GLOBAL)
    library = tvm_ffi.load_module(str(folder / "kernels.so"))
    with np.load(folder / "arrays.npz") as arrays:
        for index, (name, count, shape, dtype) in enumerate(json.loads((folder / "calls.json").read_text())):
            values = [tvm_ffi.from_dlpack(exactly(arrays[f"{index}/{place}"])) for place in range(count)]
            output = exactly(np.zeros(shape, dtype), missing=8 if too_small else 0)
            library.get_function(name)(*values, tvm_ffi.from_dlpack(output))


def exactly(array: np.ndarray, missing: int = 0) -> np.ndarray:
    """A copy whose memory ends `missing` bytes before the array does, in a block of the allocator's own."""
    import ctypes

    libc = ctypes.CDLL(None)
    place, size = ctypes.c_void_p(), array.nbytes - missing
    libc.posix_memalign(ctypes.byref(place), ctypes.c_size_t(64), ctypes.c_size_t(size))
    assert place.value is not None
    ctypes.memmove(place, array.ctypes.data, size)
    whole = memoryview((ctypes.c_uint8 * array.nbytes).from_address(place.value))
    return np.frombuffer(whole, array.dtype).reshape(array.shape)


if __name__ == "__main__":
    if sys.argv[1] == "build":
        build(Path(sys.argv[2]))
    else:
        run(Path(sys.argv[2]), too_small=False)
        print("all kernels ran", flush=True)
        if not (process := os.fork()):
            run(Path(sys.argv[2]), too_small=True)
            os._exit(0)
        print("with too small outputs:", os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
