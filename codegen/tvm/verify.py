"""What the library computes against what ONNX Runtime computed with the exported file.

Layer by layer, each kernel given ONNX Runtime's own values; then end to end, on the library's own values.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ptqc.codegen.tvm.layout import Layout
from ptqc.codegen.tvm.program import Program, Step
from ptqc.errors import VerificationError

# Of the largest magnitude of a float tensor.
FLOAT_TOLERANCE = 1e-5
# ONNX Runtime computes these as ½ + something, so small results carry the rounding of ½.
ROUNDED_AT_ONE = {"sigmoid": 5e-7, "tanh": 1e-6}

Values = Mapping[str, np.ndarray]


@dataclass
class Compared:
    """integers, reals: elements compared, kernel by kernel. different: integers that differ end to end, by tensor."""

    kernels: int = 0
    integers: int = 0
    reals: int = 0
    end_to_end: int = 0
    different: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Loaded:
    """A program with its compiled kernels. run: name -> a function of buffers; constants: of all steps, unpacked."""

    program: Program
    run: Callable[[str], Any]
    constants: Sequence[Any]

    def __call__(self, step: int, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The output of one step, both in the model's order."""
        import tvm

        chosen: Step = self.program.steps[step]
        first = sum(len(other.built.constants) for other in self.program.steps[:step])
        own = self.constants[first : first + len(chosen.built.constants)]
        layout = self.program.layouts[chosen.output]
        output = tvm.runtime.tensor(_buffer(layout, np.zeros((len(inputs[0]), *layout.shape), layout.dtype)))
        given = [
            tvm.runtime.tensor(_buffer(self.program.layouts[name], value))
            for name, value in zip(chosen.inputs, inputs, strict=True)
        ]
        self.run(chosen.built.name)(*given, *own, output)
        return layout.from_memory(output.numpy())


def _buffer(layout: Layout, values: np.ndarray) -> np.ndarray:
    memory = layout.to_memory(values.reshape(len(values), *layout.shape))
    return memory.reshape(len(values), *layout.shape) if layout.outside else memory


def compare(loaded: Loaded, values: Values, compared: Compared) -> None:
    """Compare every tensor of one run; values: of ONNX Runtime, inputs included, by name in the lowered graph.

    Raises VerificationError naming the first kernel that differs.
    """
    program = loaded.program
    alone = {name: values[name] for name in program.inputs}
    chained = dict(alone)
    for index, step in enumerate(program.steps):
        inputs = [values.get(name, alone.get(name)) for name in step.inputs]
        alone[step.output] = found = loaded(index, inputs)  # type: ignore[arg-type]
        chained[step.output] = loaded(index, [chained[name] for name in step.inputs])
        wanted = values.get(step.output.removesuffix("@outside"))
        if wanted is None:
            continue
        _check(step, wanted, found, compared)
        compared.kernels += 1
        if wanted.dtype.kind != "f":
            compared.end_to_end += wanted.size
            wrong = int(np.count_nonzero(wanted.reshape(-1) != chained[step.output].reshape(-1)))
            if wrong:
                compared.different[step.output] = compared.different.get(step.output, 0) + wrong


def _check(step: Step, wanted: np.ndarray, found: np.ndarray, compared: Compared) -> None:
    where = f"the cpu library differs from the ONNX file at {step.output} ({step.built.family})"
    if wanted.size != found.size or wanted.dtype != found.dtype:
        raise VerificationError(f"{where}: {found.dtype}{found.shape} instead of {wanted.dtype}{wanted.shape}")
    found = found.reshape(wanted.shape)
    if wanted.dtype.kind != "f":
        compared.integers += wanted.size
        wrong = int(np.count_nonzero(wanted != found))
        if wrong:
            most = int(np.abs(wanted.astype(int) - found).max())
            raise VerificationError(f"{where}: {wrong} of {wanted.size} integers, by up to {most}")
        return
    compared.reals += wanted.size
    distance = float(np.abs(wanted - found).max(initial=0.0))
    magnitude = float(np.abs(wanted).max(initial=0.0))
    allowed = FLOAT_TOLERANCE * magnitude + ROUNDED_AT_ONE.get(step.built.family, 0.0)
    if not distance <= allowed:
        raise VerificationError(f"{where}: by {distance:.1e} where {allowed:.1e} is allowed")
