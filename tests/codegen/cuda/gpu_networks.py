"""Networks for the emulator; imports TVM, see `emulated_networks.py`."""

from pathlib import Path

import test_more_operators
import test_operators
import test_random_networks

from ptqc.codegen.cuda import building
from ptqc.codegen.cuda.layers import CUDA
from ptqc.codegen.cuda.toolkit import Toolkit
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.program.program import Program
from ptqc.codegen.program.verify import Runnable

RANDOM = 12
# Of all operators those whose kernels differ the most from each other.
FEW = (
    "softmax of channels between codes",
    "mean of planes",
    "gathered codes",
    "attention",
)


def programs_of(kind: str, folder: Path) -> dict[str, Program]:
    """The kernels of networks of a kind."""
    if kind == "more":
        return test_more_operators.programs_of(CUDA, folder)
    if kind == "random":
        return {str(seed): test_random_networks.network(seed, CUDA, folder / str(seed)) for seed in range(RANDOM)}
    names = FEW if kind == "few" else None
    return test_operators.programs_of(CUDA, folder, floating=kind == "float", names=names)


def built(program: Program, _chosen: Isa, folder: Path) -> Runnable:
    """Their library, on the emulator."""
    return building.write(program, Toolkit.require(), ["sm_80"], folder).emulated().library
