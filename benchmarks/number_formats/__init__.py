"""Number formats of the literature, each an object that rounds a weight and counts its bits: for comparisons only."""

from number_formats.additions import AdditionsFormat
from number_formats.base import NumberFormat, Rows, Stored, decibels
from number_formats.chosen import ChosenFormat
from number_formats.levels import (
    E2M1,
    E2M2,
    E2M3,
    E2M4,
    E3M2,
    E3M4,
    E4M3,
    E5M2,
    TERNARY,
    EvenLevels,
    Mantissas,
    dynamic,
    normal_float,
    powers_of_two,
)
from number_formats.product import AffineFormat, HalfFormat, ProductFormat
from number_formats.scaled import ScaledFormat
from number_formats.scaling import CeilingExponent, FloatScale, FloorExponent, SearchedExponent, ShareOfRow
from number_formats.sparse import SparseFormat
from ptqc.formats import Codebook, Entropy, Integer, Trellis, VectorCodebook

__all__ = ["ACTIVATIONS", "BEYOND", "PRODUCT", "WHOLE", "NumberFormat", "ProductFormat", "Rows", "Stored", "decibels"]

# What ptqc chooses from.
FAMILIES = Integer, Codebook, VectorCodebook, Trellis, Entropy
PRODUCT: tuple[ProductFormat, ...] = tuple(
    ProductFormat(str(form), form) for family in FAMILIES for form in family.members() if not form.by_row
)

MICROSCALED = 32
# Bits of codes, and of multiples of them that together still are int8 codes with one scale for a channel.
SHARES = {2: 4, 3: 4, 4: 4, 5: 3, 6: 2}
ELEMENTS = {"MXFP8": (E4M3, E5M2), "MXFP6": (E2M3, E3M2), "MXFP4": (E2M1,)}
ROUNDING = {"floor": FloorExponent(), "ceiling": CeilingExponent()}


def _integers() -> list[NumberFormat]:
    formats: list[NumberFormat] = []
    for bits in (2, 3, 4):
        for block in (16, 32, 64, 128):
            formats.append(ScaledFormat(f"int{bits}, blocks of {block}, float16", EvenLevels(bits), block))
        formats.append(ScaledFormat(f"int{bits}, blocks of 32, E8M0", EvenLevels(bits), 32, SearchedExponent()))
    for bits, share in SHARES.items():
        for block in (16, 32):
            name = f"int{bits}, blocks of {block}, {share}-bit shares"
            formats.append(ScaledFormat(name, EvenLevels(bits), block, ShareOfRow(share)))
    for bits in (3, 4, 6, 8):
        formats.append(ScaledFormat(f"int{bits}, power-of-two scale", EvenLevels(bits), None, SearchedExponent()))
    return formats


def _shared_exponents() -> list[NumberFormat]:
    formats: list[NumberFormat] = []
    for bits, block in ((4, 16), (4, 32), (4, 64), (6, 16), (8, 32)):
        formats.append(ScaledFormat(f"block floating point {bits}/{block}", Mantissas(bits), block, FloorExponent()))
    for name, several in ELEMENTS.items():
        for levels in several:
            for how, rule in ROUNDING.items():
                formats.append(ScaledFormat(f"{name} {levels}, {how}", levels, MICROSCALED, rule))
    formats.append(ScaledFormat("NVFP4", E2M1, 16, FloatScale()))
    return formats


def _floats() -> list[NumberFormat]:
    eight = tuple(ScaledFormat(f"FP8 {levels}", levels) for levels in (E4M3, E5M2, E3M4))
    six = tuple(ScaledFormat(f"FP6 {levels}", levels) for levels in (E3M2, E2M3))
    chosen = ChosenFormat("FP8, split chosen", eight), ChosenFormat("FP6, split chosen", six)
    four = ScaledFormat("FP4 E2M1", E2M1)
    odd = ScaledFormat("FP7 E2M4", E2M4), ScaledFormat("FP5 E2M2", E2M2)
    return [HalfFormat("float16"), HalfFormat("bfloat16"), *eight, chosen[0], odd[0], *six, chosen[1], odd[1], four]


def _listed() -> list[NumberFormat]:
    return [
        ScaledFormat("log2, 4 bits", powers_of_two(4)),
        ScaledFormat("dynamic tree, 8 bits, blocks of 256", dynamic(8), 256),
        ScaledFormat("dynamic tree, 4 bits, blocks of 64", dynamic(4), 64),
        ScaledFormat("NF4, blocks of 64", normal_float(), 64),
        ScaledFormat("ternary", TERNARY),
        ProductFormat("codebook5", Codebook(5)),
    ]


def _sparse() -> list[NumberFormat]:
    half = [SparseFormat(f"half zero, bit mask, int{bits}", bits, 50) for bits in (2, 4, 6)]
    two = [SparseFormat(f"2:4, int{bits}", bits, 2, 4) for bits in (2, 4, 6)]
    four = [SparseFormat(f"4:8, int{bits}", bits, 4, 8) for bits in (2, 4, 6)]
    return [*half, *two, *four]


def _additions() -> list[NumberFormat]:
    return [AdditionsFormat(f"PANN, {count:g} additions", count) for count in (1, 2, 4)]


# What it does not.
BEYOND: tuple[NumberFormat, ...] = (
    *_integers(),
    *_shared_exponents(),
    *_floats(),
    *_listed(),
    *_sparse(),
    *_additions(),
)

# Those of them that whole networks are rounded to, since they are the best of their kind.
WHOLE: tuple[NumberFormat, ...] = tuple(
    form
    for form in BEYOND
    if form.name
    in (
        "int3, blocks of 16, 4-bit shares",
        "int4, blocks of 16, 4-bit shares",
        "int4, blocks of 32, 4-bit shares",
        "int4, blocks of 32, float16",
        "int5, blocks of 16, 3-bit shares",
        "int6, power-of-two scale",
        "block floating point 4/16",
        "MXFP4 E2M1, floor",
        "NVFP4",
        "FP6, split chosen",
        "NF4, blocks of 64",
        "codebook5",
        "half zero, bit mask, int4",
        "PANN, 2 additions",
    )
)

# Of activations the first is what ptqc rounds to.
ACTIVATIONS: tuple[NumberFormat, ...] = (
    AffineFormat(),
    HalfFormat("bfloat16"),
    *(ScaledFormat(f"FP8 {levels}", levels) for levels in (E4M3, E5M2, E3M4)),
    *(
        ScaledFormat(f"{name} {levels}, {how}", levels, MICROSCALED, rule)
        for name, several in ELEMENTS.items()
        for levels in several
        for how, rule in ROUNDING.items()
    ),
    *(ScaledFormat(f"block floating point {bits}/32", Mantissas(bits), 32, FloorExponent()) for bits in (4, 6, 8)),
    ScaledFormat("int4", EvenLevels(4)),
    ScaledFormat("int4, blocks of 32, float16", EvenLevels(4), 32),
    ScaledFormat("log2, 4 bits", powers_of_two(4)),
)
