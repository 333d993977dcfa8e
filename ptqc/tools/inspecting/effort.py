"""What a compile will roughly take: whether minutes or hours, no more.

seconds = START + EACH · weights + products of solving / SOLVED + products of running / RAN, on one processor
bytes = PROGRAM + COPIES · weights in float32 + what a walk holds of activations

Of a model beyond memory, bytes = PROGRAM + the most of its phases: a block of second moments with the weights that are
solved at a time; what a walk holds; FILED bytes for each weight while the file is verified.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ptqc.formats import Scaled
from ptqc.ir.layers import Weight
from ptqc.passes.quantize.measure_sensitivity import COMPUTE
from ptqc.passes.quantize.moment_blocks import SMALL_BLOCK_BYTES
from ptqc.passes.quantize.solve_weights import products, solving_bytes
from ptqc.passes.reconstruct.reconstruct import WALK_BYTES, WALK_COMPUTE
from ptqc.utils.parallel import ROOM

# Seconds in any case and for each weight, and products per second; fitted to compiles of 0.07 to 5 million weights.
START, EACH, SOLVED, RAN = 4.0, 0.5, 1e10, 4e10
# How often a calibration sample is run, from the observation to the comparison with float.
RUNS = 10
# Draws that reconstruction walks with.
WALKS = 3
PROGRAM, COPIES, FILED = 350e6, 6, 1


@dataclass(frozen=True)
class Effort:
    """Seconds of one processor, and bytes of memory; both rough. seconds: None where the products are not known."""

    seconds: float | None
    memory: float


def effort(
    weights: Sequence[Weight], forms: Sequence[Scaled], macs: int | None, samples: int, *, in_files: bool = False
) -> Effort:
    """Time and memory of a compile with this many samples.

    macs: products of one run of one sample. in_files: whether the model is beyond memory.
    """
    elements = sum(weight.size for weight in weights)
    walk = WALK_BYTES if macs is None else min(WALK_BYTES, macs)
    memory = PROGRAM + 4 * COPIES * elements + walk
    if in_files:
        largest = max((solving_bytes(weight, forms, in_files=True) for weight in weights), default=0)
        memory = PROGRAM + max(SMALL_BLOCK_BYTES + max(largest, min(2 * largest, ROOM)), walk, FILED * elements)
    if macs is None:
        return Effort(None, memory)
    ran = min(COMPUTE, len(weights) ** 2 * 2.0 * macs) + RUNS * samples * macs
    ran += WALKS * min(WALK_COMPUTE, float(samples * macs))
    solving = sum(products(weight, forms) for weight in weights)
    return Effort(START + EACH * len(weights) + solving / SOLVED + ran / RAN, memory)
