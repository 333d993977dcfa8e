"""The chips that predicted times are of, by their published figures."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Chip:
    """processors: streaming multiprocessors, at `clock` GHz. products, floats: of bytes and of FP8 in a processor's
    tensor cores at each clock, by mma.sync. unpacking: instructions for four numbers of FP8 where they are multiplied
    as float16. bandwidth: of memory, GB/s. shared: bytes and threads that a processor holds. grouped: products of bytes
    by wgmma, where a chip has it."""

    name: str
    processors: int
    clock: float
    products: int
    floats: int
    unpacking: int
    bandwidth: float
    shared: int
    threads: int
    grouped: int = 0


# From NVIDIA's data sheets and white papers; of Hopper's tensor cores mma.sync reaches about 62 %. For 9.0, products of
# FP8 become products of float16 in the assembler: its tensor cores take FP8 by wgmma only.
CHIPS = {
    "sm_80": Chip("A100 40 GB", 108, 1.41, 2048, 1024, 8, 1555, 164 * 1024, 2048),
    "sm_86": Chip("RTX 3090", 82, 1.70, 1024, 256, 8, 936, 100 * 1024, 1536),
    "sm_89": Chip("L4", 58, 2.04, 1024, 1024, 0, 300, 100 * 1024, 1536),
    "sm_90a": Chip("H100 SXM", 132, 1.83, 2540, 1270, 2, 3350, 228 * 1024, 2048, 4096),
}
# Of a processor at each clock: instructions on integers, or as many on real numbers.
INTEGER_RATE = 64
# Clocks until what was read from memory is there; seconds that a launch takes.
LATENCY, LAUNCH = 600, 3e-6


def gpu_of(capability: tuple[int, int]) -> str:
    """The architecture of a chip, as machine code for it is asked for."""
    name = f"sm_{capability[0]}{capability[1]}"
    return next((known for known in CHIPS if known.rstrip("a") == name), name)
