"""The instruction sets of processors that libraries are built for."""

from collections.abc import Set
from dataclasses import replace

from ptqc.codegen.kernels.isa import DOT, BfloatInstructions, Isa, Packs, TileInstructions, TileShape
from ptqc.errors import UsageError
from ptqc.utils.machine import machine, processor_features

_AVX2 = ("avx2", "fma", "bmi1", "bmi2", "f16c", "movbe")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni")
_PACKS_256 = Packs("llvm.x86.avx.cvt.ps2dq.256", "llvm.x86.avx2.packssdw", "llvm.x86.avx2.packuswb")
_PACKS_512 = Packs("llvm.x86.avx512.mask.cvtps2dq.512", "llvm.x86.avx512.packssdw.512", "llvm.x86.avx512.packuswb.512")
# Matrix instructions: sums, weights and inputs that each takes at once.
_VNNI_256 = TileShape(1, 8, DOT, name="llvm.x86.avx512.vpdpbusd.256")
_VNNI_512 = TileShape(1, 16, DOT, name="llvm.x86.avx512.vpdpbusd.512")
_AMX = TileShape(16, 16, 64, name="llvm.x86.tdpbusd")
_AMX_BF16 = TileShape(16, 16, 32, inputs="bf16", weights="bf16", sums="f32", name="llvm.x86.tdpbf16ps")
_AMX_REGISTERS = TileInstructions(
    "llvm.x86.ldtilecfg", "llvm.x86.tilerelease", "llvm.x86.tileloadd64", "llvm.x86.tilestored64", registers=8
)
_PICK_256, _PICK_512 = "llvm.x86.avx2.pshuf.b", "llvm.x86.avx512.pshuf.b.512"
_PERMUTE = "llvm.x86.avx512.vpermi2var.qi"
AVX2 = Isa("avx2", "haswell", _AVX2, lanes=8, registers=16, working=6, packs=_PACKS_256, in_words=True, pick=_PICK_256)
AVX2 = replace(AVX2, signed=replace(AVX2, signed_inputs=True, sign="llvm.x86.avx2.psign.b"))
# The products of bytes of AVX-512 VNNI on vectors of AVX2, which processors without AVX-512 have.
AVX_VNNI = replace(
    AVX2,
    name="avx-vnni",
    features=(*_AVX2, "avx_vnni"),
    working=1,
    in_words=False,
    tiles=(_VNNI_256,),
    attributes=("+avxvnni",),
)
_VNNI_HALF = Isa(
    "avx512-vnni",
    "cascadelake",
    _AVX512,
    lanes=8,
    registers=32,
    working=1,
    packs=_PACKS_256,
    tiles=(_VNNI_256,),
    pick=_PICK_256,
)
AVX512_VNNI = replace(_VNNI_HALF, lanes=16, packs=_PACKS_512, tiles=(_VNNI_512,), half=_VNNI_HALF, pick=_PICK_512)
_VBMI = {"name": "avx512-vbmi", "features": (*_AVX512, "avx512vbmi"), "attributes": ("+avx512vbmi",)}
_VBMI_HALF = replace(_VNNI_HALF, permute=f"{_PERMUTE}.256", **_VBMI)  # type: ignore[arg-type]
AVX512_VBMI = replace(AVX512_VNNI, permute=f"{_PERMUTE}.512", half=_VBMI_HALF, **_VBMI)  # type: ignore[arg-type]
AVX512_BF16 = replace(
    AVX512_VBMI,
    name="avx512-bf16",
    features=(*AVX512_VBMI.features, "avx512_bf16"),
    attributes=(*AVX512_VBMI.attributes, "+avx512bf16"),
    bfloats=BfloatInstructions(
        "llvm.x86.avx512bf16.dpbf16ps.512",
        "call <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float> %x)",
    ),
)
_PACKS_NEON = Packs(
    "llvm.aarch64.neon.fcvtns.v4i32.v4f32",
    "llvm.aarch64.neon.sqxtn.v4i16",
    "llvm.aarch64.neon.sqxtun.v8i8",
    of_one=True,
)
ARM_NEON = Isa(
    "arm-neon",
    "generic",
    ("asimd",),
    lanes=4,
    registers=32,
    working=16,
    packs=_PACKS_NEON,
    signed_inputs=True,
    in_words=True,
    pick="llvm.aarch64.neon.tbl1.v16i8",
    look_up="llvm.aarch64.neon.tbl4.v16i8",
    machine="aarch64",
)
# Processors with AMX have all of that.
AMX_INT8 = replace(
    AVX512_BF16,
    name="amx-int8",
    features=(*AVX512_BF16.features, "amx_tile", "amx_int8", "amx_bf16"),
    attributes=(*AVX512_BF16.attributes, "+amx-tile", "+amx-int8", "+amx-bf16"),
    tiles=(_AMX, _AMX_BF16, _VNNI_512),
    tile_registers=_AMX_REGISTERS,
)
ARM_DOTPROD = replace(
    ARM_NEON,
    name="arm-dotprod",
    features=("asimd", "asimddp"),
    tiles=(TileShape(1, 4, DOT, inputs="s8", name="llvm.aarch64.neon.sdot.v4i32.v16i8"),),
    working=8,
    in_words=False,
    by_lane=True,
    attributes=("+dotprod",),
)
ARM_I8MM = replace(
    ARM_DOTPROD,
    name="arm-i8mm",
    features=("asimd", "asimddp", "i8mm"),
    tiles=(
        TileShape(2, 2, 8, name="llvm.aarch64.neon.usmmla.v4i32.v16i8"),
        TileShape(1, 4, DOT, name="llvm.aarch64.neon.usdot.v4i32.v16i8"),
    ),
    signed_inputs=False,
    attributes=("+dotprod", "+i8mm"),
)
ARM_BF16 = replace(
    ARM_I8MM,
    name="arm-bf16",
    features=(*ARM_I8MM.features, "bf16"),
    attributes=(*ARM_I8MM.attributes, "+bf16"),
    bfloats=BfloatInstructions("llvm.aarch64.neon.bfdot.v4f32.v8bf16", "fptrunc <4 x float> %x to <4 x bfloat>"),
)
# Plain C: for other processors, and for what address and undefined-behaviour sanitizers can look into.
C = Isa("c", "", (), lanes=1, registers=16, working=2, kind="c")
_X86 = (AMX_INT8, AVX512_BF16, AVX512_VBMI, AVX512_VNNI, AVX_VNNI, AVX2)
KNOWN = {isa.name: isa for isa in (*_X86, ARM_BF16, ARM_I8MM, ARM_DOTPROD, ARM_NEON, C)}


def named(name: str) -> Isa:
    """The instruction set of a name; `host`: the best of this machine, `portable`: the first of its kind.

    Raises UsageError naming the known ones.
    """
    if name in ("host", "portable"):
        return _of_machine(processor_features() if name == "host" else None)
    if name not in KNOWN:
        raise UsageError(f"instruction set {name!r}; known: {', '.join(KNOWN)}")
    return KNOWN[name]


def several(names: str) -> list[Isa]:
    """Instruction sets of comma-separated names, the best first, each once. Raises UsageError naming the known ones."""
    wanted = [named(name) for name in names.split(",")]
    return [isa for isa in KNOWN.values() if isa in wanted]


def _of_machine(features: Set[str] | None) -> Isa:
    """The best for these features on a machine of this kind; without features, the one that asks for the least."""
    # AMX has to be asked for: its kernels were never timed on a processor that has it.
    own = [isa for isa in KNOWN.values() if isa.machine == machine() and isa.cpu and not isa.tile_registers]
    result = own[-1:] if features is None else [isa for isa in own if features >= set(isa.features)]
    if not result:
        known = ", ".join(isa.name for isa in own)
        raise UsageError(f"this processor has none of the instruction sets {known}: run model.onnx instead")
    return result[0]
