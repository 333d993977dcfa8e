"""How long the kernels of a program take on chips, predicted: nothing was measured.

Products on tensor cores say it themselves (`costs.py`). Of any other kernel each element that it writes is taken to be
a thread, which reads its share of the inputs and does its share of the operations one after the other. The kernel takes
a launch, and the longest of three: its bytes from memory; its instructions on all processors; one thread on its own.
"""

from collections.abc import Mapping

from ptqc.codegen.cuda.gpu_specs import CHIPS, INTEGER_RATE, LATENCY, LAUNCH, Chip
from ptqc.codegen.program.constants import loaded_bytes
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import Program, ProgramStep

# Instructions of a thread: for each number that it reads or makes, its place included; for each product or sum, what it
# reads for it included.
EACH_NUMBER, EACH_OPERATION = 8, 2
# Clocks that a thread on its own waits for each of them: an instruction that needs what the one before made.
EACH_WAIT = 5


def predicted(program: Program) -> list[Mapping[str, float]]:
    """Microseconds of each step for one sample, by chip."""
    return [step.kernel.predicted or _of_elements(step, program.layouts) for step in program.steps]


def _of_elements(step: ProgramStep, layouts: Mapping[str, Layout]) -> dict[str, float]:
    read, result = [layouts[name] for name in step.arguments], layouts[step.output]
    threads = max(1, result.elements - sum(layouts[name].elements for name in step.placed))
    moved = threads * result.itemsize + sum(layout.elements * layout.itemsize for layout in read)
    moved += sum(map(loaded_bytes, step.kernel.constants))
    numbers = threads + sum(layout.elements for layout in read)
    instructions = EACH_NUMBER * numbers + EACH_OPERATION * step.kernel.operations
    return {name: round(1e6 * _seconds(chip, moved, instructions, threads), 2) for name, chip in CHIPS.items()}


def _seconds(chip: Chip, moved: int, instructions: int, threads: int) -> float:
    together = instructions / (chip.processors * INTEGER_RATE)
    alone = instructions / threads * EACH_WAIT
    return LAUNCH + max((LATENCY + max(together, alone)) / chip.clock, moved / chip.bandwidth) * 1e-9
