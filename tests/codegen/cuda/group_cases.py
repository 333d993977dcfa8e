"""Layers of codes by products of warpgroups, one kernel each, with what they have to give; imports TVM.

Each has PTX for chips that have such products and for those that do not; both are run.
"""

from collections.abc import Iterator

from dense_cases import OUTPUTS, POINTS, WINDOW, Drawn, drawn
from single_kernels import Case

from ptqc.codegen.cuda import group_cores
from ptqc.codegen.cuda.fragments import Coding
from ptqc.codegen.cuda.group_tiles import GroupTiles
from ptqc.codegen.cuda.isa import BY_ELEMENT
from ptqc.codegen.cuda.pairs import PairCoding
from ptqc.codegen.cuda.tiles import TileCut
from ptqc.codegen.kernels.epilogue import NOTHING
from ptqc.codegen.program.window import Window

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


def case(kind: str, cut: TileCut, seed: int, window: Window, outputs: int, *, ends: bool = False) -> Case:
    """A layer with random codes. ends: inputs are 0 or 255."""
    weights = drawn(kind, (outputs, window.channels, *window.kernel), seed)
    found = Drawn.of(weights, seed, window, ends=ends)
    pairs = PairCoding.of(weights) if kind.startswith("places") else None
    coding = pairs or Coding.of(weights, weights[0].size)
    tiles = GroupTiles(window, outputs, cut, coding.bits)
    return found.case(group_cores.write(tiles, coding, *found.layouts, BY_ELEMENT, weights, found.numbers, NOTHING))


def cases(kind: str) -> Iterator[tuple[str, Case]]:
    """Codes of several widths and lists in several cuts. kind: one, few or all."""
    kinds = [*(f"bits {bits}" for bits in (8, 5, 2, 4, 1, 7, 3, 6)), "levels 16", "levels 5", "places 50", "places 200"]
    cuts, layers = list(CUTS.items()), list(LAYERS.items())
    chosen = list(enumerate(kinds))[{"one": slice(1, 2), "few": slice(2), "all": slice(None)}[kind]]
    for seed, name in chosen:
        (told, cut), (place, (window, outputs)) = cuts[seed % len(cuts)], layers[seed % len(layers)]
        if name.startswith("places"):
            place, (window, outputs) = layers[1]
        yield f"{name}, {place}, {told}", case(name, cut, seed, window, outputs, ends=seed == 4)
