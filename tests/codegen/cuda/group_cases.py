"""Layers of codes by products of warpgroups, one kernel each, with what they have to give; imports TVM.

Each has PTX for chips that have such products and for those that do not; both are run.
"""

import re
from collections.abc import Callable, Iterator

from dense_cases import OUTPUTS, POINTS, WINDOW, Drawn, drawn
from single_kernels import Case

from ptqc.codegen.cuda import wgmma
from ptqc.codegen.cuda.packed_weights import Coding, PairCoding
from ptqc.codegen.cuda.tiles import TileCut
from ptqc.codegen.cuda.wgmma_tiles import GroupTiles
from ptqc.codegen.program.program import Window

CUTS = {
    "one warpgroup": TileCut(64, 128, 4, 1, 4),
    "two for other pixels": TileCut(128, 128, 4, 1, 3),
    "two for other channels": TileCut(64, 256, 4, 1, 6),
    "many pixels": TileCut(256, 128, 8, 1, 4),
    "four": TileCut(128, 256, 4, 1, 4),
}
# Layers by what is particular: three that fill neither their last step nor their last tile, and one that does.
LAYERS = {
    "a window": (WINDOW, OUTPUTS),
    "a product": (POINTS, 130),
    "3 × 3": (Window(64, (9, 6), (3, 3)), 256),
    "one step": (Window(64, (8, 8)), 128),
}
FOUR, TWO = r"\{(%r\d+), (%r\d+), (%r\d+), (%r\d+)\}", r"\{(%r\d+), (%r\d+)\}"
# Groups: the first two sums, all others, four registers of weights.
TOGETHER = rf"(wgmma\.mma_async\S+ )\{{(%r\d+), (%r\d+), ([^}}]*)\}}, {FOUR}"
# Groups: new sums, weights, two registers of pixels.
ALONE = rf"(mma\.sync\S+ \{{[^}}]*\}}, ){FOUR}, {TWO}"
# The constant bits of a descriptor, as PTX has them.
CONSTANT = "-9223371899415756800"


def together(to: str) -> Callable[[str], str]:
    """Other operands of each product of a warpgroup."""
    return lambda ptx: re.sub(TOGETHER, rf"\1{to}", ptx)


def alone(to: str) -> Callable[[str], str]:
    """Other operands of each product of a single warp."""
    return lambda ptx: re.sub(ALONE, rf"\1{to}", ptx)


def described(mode: int, pieces: int) -> Callable[[str], str]:
    """Another descriptor. pieces: of 16 bytes, from eight rows to the next eight."""
    bits = mode << 62 | pieces << 32 | 1 << 16
    return lambda ptx: ptx.replace(CONSTANT, str(bits - (bits >> 63 << 64)))


SUMS, LEFT = r"{\2, \3, \4}", r"{\5, \6, \7, \8}"
# Of the kind "few".
FAULTS: dict[str, Callable[[str], str]] = {
    "no fence of registers": lambda ptx: ptx.replace("wgmma.fence.sync.aligned;", ""),
    "the fence of registers behind the first product": lambda ptx: re.sub(
        r"(wgmma\.fence\.sync\.aligned;)([\s\S]*?wgmma\.mma_async[^;]*;)", r"\2 \1", ptx),
    "products never waited for": lambda ptx: re.sub(r"wgmma\.wait_group\.sync\.aligned \d;", "", ptx),
    "products waited for one part too late": lambda ptx: ptx.replace("wgmma.wait_group.sync.aligned 1;",
                                                                     "wgmma.wait_group.sync.aligned 2;"),
    "the last products not waited for": lambda ptx: ptx.replace("wgmma.wait_group.sync.aligned 0;", ""),
    "products of no group": lambda ptx: ptx.replace("wgmma.commit_group.sync.aligned;", ""),
    "no fence of proxies": lambda ptx: ptx.replace("fence.proxy.async.shared::cta;", ""),
    "the fence of proxies before copies have come": lambda ptx: re.sub(
        r"(cp\.async\.wait_group\s+\d+;)([\s\S]{0,80}?)(fence\.proxy\.async\.shared::cta;)", r"\3\2\1", ptx),
    "the fence of proxies behind the barrier, of one warp": lambda ptx: re.sub(
        r"(fence\.proxy\.async\.shared::cta;)([\s\S]{0,80}?)(bar\.sync\s+0;)",
        r"\2\3 { .reg .pred %first; setp.lt.u32 %first, %tid.x, 32; @%first \1 }",
        ptx,
    ),
    "barriers left out": lambda ptx: re.sub(r"\n\s*bar(rier)?\.sync[^;]*;", "\n", ptx),
    "copies waited for too late": lambda ptx: re.sub(r"(cp\.async\.wait_group)\s+(\d+);", r"\1 1\2;", ptx),
    "swizzled by 128 bytes": described(1, 32),
    "swizzled by 32 bytes": described(3, 32),
    "not swizzled": described(0, 32),
    "eight rows nearer": described(2, 16),
    "eight rows further": described(2, 64),
    "the other half of a step": lambda ptx: ptx.replace(CONSTANT, str(int(CONSTANT) + 2)),
    "the first half of a step twice": lambda ptx: re.sub(
        r"and\.b32(\s+%r\d+, %r\d+), 16383;", r"and.b32\1, 16352;", ptx),
    "memory aligned to 64 bytes": lambda ptx: ptx.replace(".align 512", ".align 64"),
    "sums not added": lambda ptx: ptx.replace("setp.ne.b32 ps0", "setp.eq.b32 ps0"),
    "inputs with a sign": lambda ptx: ptx.replace("s32.s8.u8", "s32.s8.s8"),
    "weights without a sign": lambda ptx: ptx.replace("s32.s8.u8", "s32.u8.u8"),
    "rows of weights exchanged": together(rf"{SUMS}, {{\6, \5, \8, \7}}"),
    "halves of weights exchanged": together(rf"{SUMS}, {{\7, \8, \5, \6}}"),
    "sums exchanged": together(rf"{{\3, \2, \4}}, {LEFT}"),
    "rows of weights exchanged for single warps": alone(r"{\3, \2, \5, \4}, {\6, \7}"),
    "halves of pixels exchanged for single warps": alone(r"{\2, \3, \4, \5}, {\7, \6}"),
    "pieces of a row exchanged otherwise": lambda ptx: ptx.replace("xor.b32", "or.b32"),
    "the upper plane one bit lower": lambda ptx: ptx.replace(" -252645136;", " 2021161080;"),
    "the lower plane one bit lower": lambda ptx: ptx.replace(" 134744072;", " 67372036;"),
    "rounded down": lambda ptx: ptx.replace("cvt.rni.f32.f32", "cvt.rmi.f32.f32"),
    "factors of the next channel": lambda ptx: re.sub(r"(ld\.global\.nc\.f32[^;]*)\+4\];", r"\1+8];", ptx),
}  # fmt: skip


def case(kind: str, cut: TileCut, seed: int, window: Window, outputs: int, *, ends: bool = False) -> Case:
    """A layer with random codes. ends: inputs are 0 or 255."""
    weights = drawn(kind, (outputs, window.channels, *window.kernel), seed)
    result = Drawn.of(weights, seed, window, ends=ends)
    pairs = PairCoding.of(weights) if kind.startswith("places") else None
    coding = pairs or Coding.of(weights, weights[0].size)
    tiles = GroupTiles(window, outputs, cut, coding.bits)
    return result.case(wgmma.write(tiles, coding, result.layer(window, weights)))


def cases(kind: str) -> Iterator[tuple[str, Case]]:
    """Codes of several widths and lists in several cuts. kind: one, few or all."""
    kinds = [*(f"bits {bits}" for bits in (8, 5, 2, 4, 1, 7, 3, 6)), "levels 16", "levels 5", "places 50", "places 200"]
    cuts, layers = list(CUTS.items()), list(LAYERS.items())
    chosen = list(enumerate(kinds))[{"one": slice(1, 2), "few": slice(2), "all": slice(None)}[kind]]
    for seed, name in chosen:
        (label, cut), (place, (window, outputs)) = cuts[seed % len(cuts)], layers[seed % len(layers)]
        if name.startswith("places"):
            place, (window, outputs) = layers[1]
        yield f"{name}, {place}, {label}", case(name, cut, seed, window, outputs, ends=seed == 4)
