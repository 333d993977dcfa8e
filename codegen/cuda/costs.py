"""How long products on tensor cores take, predicted from the figures of chips; and the tiles predicted to be fastest.

Nothing of this was measured. A block's step takes as long as the resource that it keeps busy the longest: tensor cores,
integer arithmetic (unpacking weights, addresses), shared memory, the way from the second cache. Blocks that a processor
holds at a time share these; where they are too few to hide it, a step takes as long as a warp waits for one instruction
after the other, or for its share of the latency of memory. Waves of such blocks follow each other, and no kernel is
faster than its bytes come from memory. Of sparse weights tensor cores multiply what is stored, half of each sum. One
library serves all chips and any number of samples, so tiles are chosen for the geometric mean over CHIPS and SAMPLES.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from math import exp, log, prod

from ptqc.codegen.cuda.gpu_specs import CHIPS, INTEGER_RATE, LATENCY, LAUNCH, Chip
from ptqc.codegen.cuda.packed_weights import REGISTERS, Coding, PairCoding
from ptqc.codegen.cuda.tiles import BLOCKS, CHUNK, PART, PARTS, ROWS, SUMS, WARP_COLUMNS, TileCut, Tiles
from ptqc.codegen.cuda.wgmma_tiles import MATRIX_ROWS, GroupTiles
from ptqc.codegen.program.program import Window

SAMPLES = (1, 64)
# Of a processor at each clock: bytes of shared memory, bytes from the second cache (half of the most).
SHARED_RATE, CACHE_RATE = 128, 32
# Clocks until what was read from shared memory is there, and a barrier is passed.
READ, BARRIER = 60, 40
REGISTER_FILE, MOST_BLOCKS, RESERVED = 65536, 32, 1024
# Shared memory and threads of a block, of those that need nothing special to be launched.
MOST_SHARED, THREADS = 48 * 1024, (64, 512)
# The same where a launch asks for more, on any chip; the chip that products of warpgroups are for.
MOST_ASKED, GROUPED = 99 * 1024, "sm_90a"
# Instructions of a thread: each step, for a copy, for an ldmatrix and its address, for a result.
EACH_STEP, EACH_COPY, EACH_MATRIX, EACH_RESULT = 20, 6, 4, 12


# Sums and inputs of a lane for each 16 rows of its warp's tile, and the registers it needs beside.
EACH_ROW_TILE, BESIDE = 20, 48


def ranked(
    window: Window, outputs: int, coding: Coding | PairCoding, *, is_sparse: bool = False, is_float8: bool = False
) -> tuple[Tiles, ...]:
    """All tiles, those with the shortest predicted times first."""
    result = candidates(window, outputs, coding.bits, coding.shared_bytes, is_sparse=is_sparse, is_float8=is_float8)
    return _ranked(tuple(result), coding.instructions)


def ranked_groups(window: Window, outputs: int, coding: Coding | PairCoding) -> list[GroupTiles]:
    """All ways to cut a layer for products of warpgroups, what is predicted to be fastest on a chip with them first."""
    chip, result = CHIPS[GROUPED], group_candidates(window, outputs, coding.bits, coding.shared_bytes)

    def typical(tiles: GroupTiles) -> float:
        return sum(log(_seconds(chip, tiles, coding.instructions, samples)) for samples in SAMPLES)

    return sorted(result, key=typical)


@lru_cache
def _ranked(result: tuple[Tiles, ...], instructions: int) -> tuple[Tiles, ...]:
    return tuple(sorted(result, key=lambda tiles: _typical(tiles, instructions)))


def typical(tiles: Tiles, coding: Coding | PairCoding) -> float:
    """Predicted seconds, the geometric mean over CHIPS and SAMPLES."""
    return exp(_typical(tiles, coding.instructions) / (len(CHIPS) * len(SAMPLES)))


@lru_cache(maxsize=1 << 16)
def _typical(tiles: Tiles, instructions: int) -> float:
    return sum(log(_seconds(chip, tiles, instructions, samples)) for chip in CHIPS.values() for samples in SAMPLES)


def predicted(tiles: Tiles, coding: Coding | PairCoding, samples: int = 1) -> dict[str, float]:
    """Microseconds by chip."""
    seconds = {name: _seconds(chip, tiles, coding.instructions, samples) for name, chip in CHIPS.items()}
    return {name: round(1e6 * result, 2) for name, result in seconds.items()}


def candidates(
    window: Window, outputs: int, bits: int, beside: int = 0, *, is_sparse: bool = False, is_float8: bool = False
) -> Iterator[Tiles]:
    """All ways to cut a layer whose weights have so many bits. beside: shared memory for other things."""
    for rows, columns, row_tiles in product((16, 32, 64, 128), (32, 64, 128), (1, 2, 4)):
        for shares, stages in product((1, 2), (3, 4, 6)):
            cut = TileCut(rows, columns, row_tiles, shares, stages)
            tiles = Tiles(window, outputs, cut, bits, is_sparse, is_float8)
            fits = (
                tiles.units % shares == 0 and rows % tiles.warp_rows == 0 and tiles.shared_bytes + beside <= MOST_SHARED
            )
            if fits and THREADS[0] <= tiles.threads <= THREADS[1]:
                yield tiles


def group_candidates(window: Window, outputs: int, bits: int, beside: int = 0) -> Iterator[GroupTiles]:
    """The same for products of warpgroups, whose sums need most of a thread's registers."""
    for rows, columns, row_tiles, stages in product((64, 128, 256), (128, 256), (4, 8), (4, 6)):
        tiles = GroupTiles(window, outputs, TileCut(rows, columns, row_tiles, stages=stages), bits)
        fits = rows % tiles.warp_rows == 0 and tiles.shared_bytes + beside <= MOST_ASKED
        if fits and tiles.threads <= THREADS[1] and tiles.threads * _registers(tiles) <= REGISTER_FILE:
            yield tiles


def _registers(tiles: Tiles) -> int:
    return tiles.cut.row_tiles * EACH_ROW_TILE + BESIDE


def _seconds(chip: Chip, tiles: Tiles, instructions: int, samples: int) -> float:
    blocks = -(-prod(tiles.window.output) * samples // tiles.cut.rows) * tiles.panels
    resident = _resident(chip, tiles)
    waves, remainder = divmod(-(-blocks // chip.processors), resident)
    clocks = waves * _clocks(chip, tiles, instructions, resident)
    clocks += _clocks(chip, tiles, instructions, remainder) if remainder else 0
    return LAUNCH + max(clocks / chip.clock, _memory_bytes(tiles, samples) / chip.bandwidth) * 1e-9


def _resident(chip: Chip, tiles: Tiles) -> int:
    """Blocks that a processor holds."""
    registers = REGISTER_FILE // (tiles.threads * _registers(tiles))
    room = (chip.shared // (tiles.shared_bytes + RESERVED), chip.threads // tiles.threads, registers)
    return max(1, min(*room, MOST_BLOCKS))


def _clocks(chip: Chip, tiles: Tiles, instructions: int, together: int) -> float:
    waiting = max(_chain(chip, tiles, instructions), LATENCY / (tiles.cut.stages - 1))
    each_step = max(_busy(chip, tiles, instructions) * together, waiting)
    summed = (tiles.cut.shares - 1) * 2 * tiles.cut.rows * tiles.cut.columns * 4 / SHARED_RATE
    epilogue = tiles.cut.rows * tiles.cut.columns * EACH_RESULT / INTEGER_RATE
    return 2 * LATENCY + tiles.steps * each_step + (summed + epilogue) * together


def _chain(chip: Chip, tiles: Tiles, instructions: int) -> float:
    """Clocks until a warp is through a step on its own: it has one of a processor's four tensor cores.

    Weights of one part are unpacked while a warpgroup multiplies another.
    """
    multiplied = tiles.cut.row_tiles * ROWS * WARP_COLUMNS * PART / (_products(chip, tiles) / 4)
    unpacked, units = READ + _worked(chip, tiles, instructions), tiles.units // tiles.cut.shares
    return BARRIER + units * (max(unpacked, multiplied) if _is_grouped(chip, tiles) else unpacked + multiplied)


def _products(chip: Chip, tiles: Tiles) -> int:
    if _is_grouped(chip, tiles):
        return chip.grouped
    return chip.floats if tiles.is_float8 else chip.products


def _is_grouped(chip: Chip, tiles: Tiles) -> bool:
    """Whether warpgroups multiply, which other chips do warp by warp."""
    return isinstance(tiles, GroupTiles) and chip.grouped > 0


def _worked(chip: Chip, tiles: Tiles, instructions: int) -> int:
    """Instructions of a thread for a unit, but for its products: weights are unpacked, and FP8 is summed as float32."""
    unpacked = REGISTERS * instructions
    if not tiles.is_float8:
        return unpacked
    return unpacked + (REGISTERS + SUMS * tiles.cut.row_tiles) * chip.unpacking + SUMS * BLOCKS * tiles.cut.row_tiles


def _busy(chip: Chip, tiles: Tiles, instructions: int) -> float:
    """Clocks of the resource that a step keeps busy the longest."""
    rows, columns, (shares, row_warps, column_warps) = tiles.cut.rows, tiles.cut.columns, tiles.warps
    reading = columns // MATRIX_ROWS if _is_grouped(chip, tiles) else column_warps
    read = reading * tiles.input_bytes + row_warps * tiles.weight_bytes
    unpacked = tiles.units // shares * _worked(chip, tiles, instructions)
    unpacked += 0 if _is_grouped(chip, tiles) else PARTS // shares * tiles.cut.row_tiles * EACH_MATRIX
    copied = EACH_COPY * -(-tiles.step_bytes // CHUNK // tiles.threads)
    return max(
        rows * columns * PART * tiles.units / _products(chip, tiles),
        (read + tiles.step_bytes) / SHARED_RATE,
        tiles.threads * (EACH_STEP + copied + unpacked) / INTEGER_RATE,
        tiles.step_bytes / CACHE_RATE,
    )


def _memory_bytes(tiles: Tiles, samples: int) -> int:
    window = tiles.window
    pixels = prod(window.size) * window.channels + prod(window.output) * tiles.outputs
    return samples * pixels + tiles.panels * tiles.steps * tiles.weight_bytes
