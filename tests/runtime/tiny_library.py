"""A tiny library, y = 2·x + (0 … 5) over inputs of (n, 2, 3): how it is built, and what it computes."""

import subprocess
import sys

import numpy as np

# Builds the library in a process of its own, so that the process of the tests never loads the compiler.
BUILD = '''
import sys
from pathlib import Path
import numpy as np
import tvm
from tvm import relax
from tvm.script import from_source
from ptqc.codegen.cpu import isa, package

KERNEL = """
@T.prim_func
def scale(x_: T.handle, c: T.Buffer((6,), "float32"), y_: T.handle):
    n = T.int64()
    x = T.match_buffer(x_, (n, 2, 3), "float32")
    y = T.match_buffer(y_, (n, 2, 3), "float32")
    for i in T.parallel(n):
        for j in T.serial(2):
            for k in T.serial(3):
                y[i, j, k] = x[i, j, k] * T.float32(2) + c[j * 3 + k]
"""
shape = (tvm.tirx.Var("n", "int64"), 2, 3)
tensor = relax.TensorType(shape, "float32")
builder = relax.BlockBuilder()
kernel = builder.add_func(from_source(KERNEL), "scale")
with builder.function("prepare", [relax.Var("weights", relax.TensorType(None, "uint8", ndim=1))]):
    builder.emit_func_output(relax.Tuple([relax.const(np.arange(6, dtype="float32"))]))
x = relax.Var("x", tensor)
constants = relax.Var("constants", relax.TupleType([relax.TensorType((6,), "float32")]))
workspace = relax.Var("workspace", relax.TupleType([]))
with builder.function("workspace", [relax.Var("x", tensor)]):
    builder.emit_func_output(relax.Tuple([]))
with builder.function("main", [x, constants, workspace]):
    with builder.dataflow():
        y = builder.emit(relax.call_tir(kernel, [x, builder.emit(relax.TupleGetItem(constants, 0))], tensor))
        result = builder.emit_output(relax.Tuple([y]))
    builder.emit_func_output(result)
package.link(builder.get(), isa.named("portable"), Path(sys.argv[1]))
'''


def values(n: int) -> np.ndarray:
    return np.arange(6 * n, dtype=np.float32).reshape(n, 2, 3) % 7 - 3


def expected(x: np.ndarray) -> np.ndarray:
    return 2 * x + np.arange(6, dtype=np.float32).reshape(2, 3)


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
