"""How long a library takes on Arm cores that are not here, predicted from published figures: nothing was measured.

A kernel of products takes its product instructions at the rate of the core, or the bytes of its weights from memory,
whichever is longer, and its results; any other kernel takes its bytes and a few instructions for each number.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.program.constants import loaded_bytes
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import Program, ProgramStep

VECTOR_BYTES = 16
# Vector instructions for each number that a layer makes: scaled, rounded, packed; for one that another kernel makes.
EPILOGUE, PER_RESULT = 1.5, 3.0


@dataclass(frozen=True)
class ProductForm:
    """How an instruction set multiplies: products of one instruction, and others that go with each."""

    instruction: str
    products: int
    beside: float


# Share of issue slots that inner loops use, by llvm-mca.
USED = 0.85
BYTES = {
    "arm-neon": ProductForm("smull", 8, 1.0),
    "arm-dotprod": ProductForm("sdot", 16, 0.0),
    "arm-i8mm": ProductForm("usmmla", 32, 0.0),
    "arm-bf16": ProductForm("usmmla", 32, 0.0),
}
REALS = ProductForm("fmla", 4, 0.0)
# Four taps of a column are one product of bytes, of which three count; rows are interleaved first.
DEPTHWISE = ProductForm("sdot", 12, 1.2)


@dataclass(frozen=True)
class ArmCore:
    """clock: GHz of a usual product. rates: instructions a cycle on vectors of 128 bits. vectors, loads: of any such
    instructions, and of loads. bandwidth: GB/s that one core reads from memory. cache: bytes of its second cache.
    """

    clock: float
    rates: Mapping[str, float]
    vectors: float
    loads: float
    bandwidth: float
    cache: int

    def takes(self, isa: Isa) -> bool:
        """Whether it has the instruction set."""
        return isa.name in BYTES and BYTES[isa.name].instruction in self.rates

    def microseconds(self, cycles: float) -> float:
        """Time of so many cycles."""
        return 1e-3 * cycles / self.clock


MB = 1 << 20
# Rates: scheduling models of LLVM 22. Clocks, caches and bandwidths: of the products named.
CORES = {
    "Cortex-A53 (Raspberry Pi 3)": ArmCore(1.4, {"smull": 1, "fmla": 1}, 1, 0.5, 2, MB // 2),
    "Cortex-A55": ArmCore(2.0, {"smull": 1, "sdot": 1, "fmla": 1}, 1, 0.5, 4, MB // 4),
    "Cortex-A72 (Raspberry Pi 4)": ArmCore(1.8, {"smull": 1, "fmla": 1}, 2, 1, 4, MB),
    "Cortex-A76 (Raspberry Pi 5)": ArmCore(2.4, {"smull": 1, "sdot": 2, "fmla": 2}, 2, 2, 8, MB // 2),
    "Cortex-A78": ArmCore(2.4, {"smull": 1, "sdot": 2, "fmla": 2}, 2, 2, 12, MB // 2),
    "Cortex-X4": ArmCore(3.3, {"smull": 2, "sdot": 4, "usmmla": 4, "fmla": 4}, 4, 3, 25, 2 * MB),
    "Neoverse N1 (Graviton2)": ArmCore(2.5, {"smull": 1, "sdot": 2, "fmla": 2}, 2, 2, 15, MB),
    "Neoverse V1 (Graviton3)": ArmCore(2.6, {"smull": 2, "sdot": 4, "usmmla": 4, "fmla": 4}, 4, 3, 20, MB),
    "Neoverse V2 (Graviton4)": ArmCore(2.8, {"smull": 2, "sdot": 4, "usmmla": 4, "fmla": 4}, 4, 3, 25, 2 * MB),
    "Apple M1": ArmCore(3.2, {"smull": 2, "sdot": 3, "fmla": 2}, 4, 3, 50, 12 * MB),
}


def predicted(program: Program, isa: Isa) -> dict[str, float]:
    """Milliseconds of one sample on one core, by core that has the instruction set; none where sizes vary."""
    if program.lengths:
        return {}
    weights = sum(loaded_bytes(constant) for step in program.steps for constant in step.kernel.constants)
    return {
        name: round(1e-3 * sum(_step(step, program.layouts, isa, core, weights) for step in program.steps), 3)
        for name, core in CORES.items()
        if core.takes(isa)
    }


def _step(step: ProgramStep, layouts: Mapping[str, Layout], isa: Isa, core: ArmCore, weights: int) -> float:
    """Microseconds of a step. weights: bytes of all of them, which stay in the cache where they fit."""
    family, result = step.kernel.family, layouts[step.output]
    if not step.kernel.operations:
        values = [layouts[name] for name in (*step.arguments, step.output)]
        moved = sum(layout.elements * layout.itemsize for layout in values)
        return core.microseconds(moved / (core.loads * VECTOR_BYTES) + PER_RESULT * result.elements / 4 / core.vectors)
    form = _form(family, isa)
    instructions = step.kernel.operations / 2 / form.products
    rate = core.rates.get(form.instruction, core.rates["smull"])
    cycles = max(instructions / rate, instructions * (1 + form.beside) / core.vectors) / USED
    epilogue = EPILOGUE * result.elements / core.vectors
    read = sum(map(loaded_bytes, step.kernel.constants)) if weights > core.cache else 0
    from_memory = 1e-3 * read / core.bandwidth
    return max(core.microseconds(cycles + epilogue), from_memory)


def _form(family: str, isa: Isa) -> ProductForm:
    if "float" in family or not family.startswith(("dense", "depthwise")):
        return REALS
    return DEPTHWISE if family.startswith("depthwise") else BYTES[isa.name]
