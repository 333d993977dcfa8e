"""Constants are stored in few bytes and come back exactly when the library is loaded."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from graphs import noise, parse
from lowering import quantized, samples
from together import program_of
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.cpu import isa, worker
from ptqc.codegen.kernels.families import build
from ptqc.codegen.kernels.int16_accumulation import Int16Accumulation
from ptqc.codegen.kernels.tiling import Dense
from ptqc.codegen.kernels.writing import PROCESSOR, KernelGrid
from ptqc.codegen.program import constants
from ptqc.codegen.program.constants import Arranged, IndexSource, Nibbles, Order, ScaledPanels, Stored
from ptqc.codegen.program.indexed import Indexed, smallest
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import Program, ProgramStep, Window
from ptqc.formats import Codebook, Format, VectorCodebook, planes
from ptqc.formats.levels import REACH

WIDTHS = range(2, 9)
CODEBOOKS = [*(Codebook(bits) for bits in range(2, 5)), *(VectorCodebook(bits) for bits in range(3, 9))]


def every_code(bits: int, size: int = 200) -> np.ndarray:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)
    codes = np.random.default_rng(bits).integers(low, high, size)
    codes[: high - low] = np.arange(low, high)[:size]
    return codes.astype(np.int8)


def from_a_codebook(form: Format, size: int = 4000) -> np.ndarray:
    random = np.random.default_rng(form.bits)
    levels = random.integers(-REACH, REACH + 1, (2**form.bits, form.group))
    return levels[random.integers(0, len(levels), size // form.group)].reshape(-1).astype(np.int8)


def looked_up(result: Indexed, size: int) -> np.ndarray:
    """The oracle of what kernels do."""
    if result.nonzero is not None:
        assert result.levels is not None
        is_kept = planes.unpack((result.nonzero.bits,), 1, size).astype(bool)
        codes = np.zeros(size, int)
        codes[is_kept] = result.levels[1:, 0][planes.unpack(result.planes, result.bits, int(is_kept.sum()))]
        return codes
    index = planes.unpack(result.planes, result.bits, -(-size // result.group)) if result.bits < 8 else result.planes[0]
    codes = index.astype(int) - 2 ** (result.bits - 1) if result.levels is None else result.levels[index]
    return codes.reshape(-1)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("size", [1, 4, 203, 1000])
def test_even_codes_take_their_bits(bits: int, size: int) -> None:
    codes = every_code(bits, size)
    result = smallest(codes)
    assert result.nbytes <= planes.packed_bytes(size, bits)
    np.testing.assert_array_equal(looked_up(result, size), codes)


@pytest.mark.parametrize("form", CODEBOOKS, ids=str)
def test_codebooks_take_their_indices_and_their_levels(form: Format) -> None:
    codes = from_a_codebook(form)
    result = smallest(codes)
    assert result.nbytes <= planes.packed_bytes(codes.size // form.group, form.bits) + 2**form.bits * form.group
    np.testing.assert_array_equal(looked_up(result, codes.size), codes)


@pytest.mark.parametrize("bits", [2, 3])
def test_grids_without_zero_take_their_bits(bits: int) -> None:
    codes = (2 * every_code(bits).astype(int) + 1).astype(np.int8)
    assert smallest(codes).nbytes == planes.packed_bytes(codes.size, bits) + 2**bits


def with_zeros(share: float, size: int, bits: int = 3) -> np.ndarray:
    random = np.random.default_rng(size)
    kept = np.where(random.random(size) < 0.5, -1, 1) * random.integers(1, 2 ** (bits - 1) + 1, size)
    return np.where(random.random(size) < share, 0, kept).astype(np.int8)


@pytest.mark.parametrize("size", [8, 203, 1024, 1025, 5000])
def test_zeros_take_a_bit(size: int) -> None:
    codes = with_zeros(0.6, size)
    result = smallest(codes)
    np.testing.assert_array_equal(looked_up(result, size), codes)
    if size > 1000:
        kept = int((codes != 0).sum())
        spans = -(-size // 1024)
        assert result.nbytes == planes.packed_bytes(size, 1) + planes.packed_bytes(kept, 3) + 4 * spans + 9


def test_few_zeros_take_no_bits() -> None:
    assert smallest(with_zeros(0.2, 5000)).nonzero is None
    assert smallest(np.where(with_zeros(0.6, 70_000) == 0, 0, every_code(8, 70_000))).nonzero is None


@pytest.mark.parametrize("codes", [np.zeros(0), np.zeros(5), np.full(9, -128)])
def test_nothing_and_single_values(codes: np.ndarray) -> None:
    np.testing.assert_array_equal(looked_up(smallest(codes.astype(np.int8)), codes.size), codes)


def test_stored_bytes() -> None:
    assert constants.stored_bytes(np.zeros(7, np.float32)) == 28
    codes = Arranged(every_code(3), straight(200))
    assert constants.stored_bytes(codes) == 75
    assert constants.stored_bytes(ScaledPanels(codes, np.ones(10, np.float32), 5)) == 75 + 40
    assert constants.stored_bytes(Nibbles(codes, 32)) == 75 + 256 + 32


def straight(*sizes: int) -> Order:
    """The model's own order."""

    def source(place: Sequence[Any]) -> IndexSource:
        total: Any = 0
        for index, size in zip(place, sizes, strict=True):
            total = total * size + index
        return IndexSource(total)

    return Order(sizes, source)


def ready_made(constant: Stored) -> np.ndarray:
    """What kernels are given: codes in their order, and those times the scale of their panel and channel."""
    match constant:
        case ScaledPanels():
            codes = ready_made(constant.codes).reshape(constant.panels, constant.depth, constant.width)
            return np.asarray(codes * constant.scale.reshape(constant.panels, 1, constant.width)).reshape(-1)
        case Nibbles():
            codes, size = ready_made(constant.codes).astype(int), constant.vector
            values = sorted({0, *codes})
            places = np.array([values.index(code) for code in codes], np.uint8).reshape(-1, 2, size)
            table = np.tile(np.resize(np.array(values, np.int8), 16), size // 16).view(np.uint8)
            return np.concatenate([table, (places[:, 0] + 16 * places[:, 1]).reshape(-1)])
        case Arranged():
            return constant.order(constant.codes)
        case np.ndarray():
            return constant
        case _:
            raise AssertionError(constant)


def halved(codes: np.ndarray) -> Arranged:
    """Weights of a layer whose channels and inputs do not fill its panels, in two halves."""
    loops = Dense(Window(5, (4, 4), (2, 3)), 7, 1, isa.AVX2, 1, Int16Accumulation(parts=2))
    return Arranged(codes, loops.order)


@pytest.mark.slow
def test_loading_gives_the_constants_back(tmp_path: Path) -> None:
    stored: list[Stored] = [Arranged(every_code(bits), straight(10, 20)) for bits in WIDTHS]
    stored += [Arranged(from_a_codebook(form), straight(4000)) for form in CODEBOOKS]
    stored += [Arranged(with_zeros(0.6, size), straight(size)) for size in (203, 1024, 3000)]
    stored += [Arranged(every_code(3, 203), straight(203)), halved(every_code(8, 210))]
    stored += [ScaledPanels(Arranged(every_code(4, 240), straight(240)), np.linspace(0.1, 2, 10, dtype=np.float32), 2)]
    stored += [Nibbles(Arranged(every_code(bits, 192), straight(192)), 32) for bits in (2, 3, 4)]
    layout = Layout((4,), "uint8")

    def body(grid: KernelGrid, *buffers: Any) -> None:
        with T.serial(grid.batch) as sample:
            T.buffer_store(buffers[-1], T.uint8(0), [sample, T.int32(0)])

    kernel = build("nothing", [layout], stored, layout, body).compile(PROCESSOR)
    program = Program((ProgramStep(kernel, ("x",), "y", "y"),), {"x": layout, "y": layout}, ("x",), ("y",))
    worker.write(program, isa.AVX2, tmp_path)
    ready = worker.load(tmp_path, program).library.constants
    for result, wanted in zip(ready, stored, strict=True):
        np.testing.assert_array_equal(np.from_dlpack(result), ready_made(wanted))
        assert np.from_dlpack(result).nbytes == constants.loaded_bytes(wanted)


def test_the_halves_of_a_weight_add_up_and_the_rest_is_zero() -> None:
    made = halved(every_code(8, 210))
    parts = np.moveaxis(made.order(made.codes).reshape(made.order.sizes), 5, 0).astype(int)
    assert np.abs(parts).max() <= 64
    assert sorted(parts.sum(0)[parts.sum(0) != 0]) == sorted(made.codes[made.codes != 0])


@pytest.mark.parametrize("form", [Codebook(3), VectorCodebook(5)], ids=str)
def test_a_network_of_codebooks_takes_about_their_bits(form: Format, tmp_path: Path) -> None:
    graph = (
        "g (float[N, 32, 6, 6] x) => (float[N, 64, 6, 6] y) { a = Conv(x, u) y = Conv <pads = [1, 1, 1, 1]> (a, w) }"
    )
    weights = {"u": noise(64, 32, 1, 1), "w": noise(64, 64, 3, 3, scale=0.1)}
    feeds = samples(2, 32, 6, 6)
    program = program_of(quantized(parse(graph, **weights), feeds, forms=form), feeds, isa.AVX2, tmp_path / "job")
    stored = sum(constants.stored_bytes(constant) for step in program.steps for constant in step.kernel.constants)
    assert stored < 1.15 * sum(weight.size for weight in weights.values()) * form.bits_per_weight / 8
