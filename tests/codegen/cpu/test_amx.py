"""Layers in registers of whole tiles (AMX): computed by functions in place of the instructions, which are compiled."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

import test_bfloats
from building import run
from graphs import noise, parse
from lowering import quantized, samples
from soft_tiles import SOFT, first_fault, functions, kernel_in_bounds, needs_soft_tiles, soft_tiles
from test_dense import GEOMETRIES as ALL_GEOMETRIES
from test_dense import Geometry, drawn, integer_case
from test_fusion import GRAPHS, SHAPE, model
from test_random_networks import TOGETHER, check_networks
from together import compared, program_of

from ptqc.codegen.cpu import isa, tuning, worker
from ptqc.codegen.kernels import tiling, writing
from ptqc.codegen.kernels.isa import DOT, Isa
from ptqc.codegen.kernels.tile_registers import ROWS, TileRegisters
from ptqc.codegen.kernels.tiling import FEW_PIXELS, TILE_UNITS, Dense
from ptqc.codegen.kernels.writing import PROCESSOR
from ptqc.codegen.program import verify
from ptqc.codegen.program.layout import SLACK
from ptqc.codegen.program.program import Program, ProgramStep, Window
from ptqc.errors import TargetError
from ptqc.runtime import interface
from ptqc.runtime.interface import Build, Interface
from ptqc.runtime.library import Library
from ptqc.utils.machine import machine

pytestmark = pytest.mark.skipif(machine() != "x86_64", reason="is about x86-64")
LAYER = Geometry(Window(24, (5, 12), (3, 3)), 20)
SHARED = Geometry(Window(64, (34, 34), (3, 3)), 64)  # by threads
REGISTERS = 8
GEOMETRIES = [
    LAYER,
    SHARED,
    Geometry(Window(64, (5, 13)), 32),
    Geometry(Window(67, (1, 17)), 10),
    Geometry(Window(3, (13, 40), (5, 5), (2, 2)), 16),
    Geometry(Window(32, (9, 19), (3, 3), (2, 2)), 48),
    Geometry(Window(20, (11, 13), (3, 3), (1, 1), (2, 3)), 9),
    Geometry(Window(48, (6, 9), (3, 3)), 34, groups=2),
    Geometry(Window(16, (1, 31), (1, 5), (1, 2), (1, 2)), 80),
    Geometry(Window(130, (3, 5)), 70, reach=8),
]


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of as few pixels and inputs as networks of tests have, every loop by threads, and no load out of bounds."""
    monkeypatch.setattr(tiling, "FEW_PIXELS", 1)
    monkeypatch.setattr(tiling, "TILE_UNITS", 1)
    monkeypatch.setattr(writing, "PARALLEL_WORK", 1)
    monkeypatch.setattr(Library, "kernel", kernel_in_bounds)


@needs_soft_tiles
def test_layers_give_the_references_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Library, "kernel", kernel_in_bounds)
    cases = [integer_case(geometry, SOFT, seed) for seed, geometry in enumerate(GEOMETRIES)]
    with soft_tiles():
        results = run([case for case, _ in cases], SOFT, tmp_path)
    for geometry, result, (_, wanted) in zip(GEOMETRIES, results, cases, strict=True):
        assert Dense(geometry.window, geometry.outputs, geometry.groups, SOFT, 1).in_tile_registers, geometry
        np.testing.assert_array_equal(result, wanted, str(geometry))


@needs_soft_tiles
@pytest.mark.slow
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("part", range(4))
def test_many_layers_give_the_references_codes(part: int, tmp_path: Path) -> None:
    geometries = [*ALL_GEOMETRIES, *(drawn(seed) for seed in range(100))][part::4]
    cases = [integer_case(geometry, SOFT, seed) for seed, geometry in enumerate(geometries)]
    with soft_tiles():
        results = run([case for case, _ in cases], SOFT, tmp_path)
    for geometry, result, (_, wanted) in zip(geometries, results, cases, strict=True):
        np.testing.assert_array_equal(result, wanted, str(geometry))


@needs_soft_tiles
@pytest.mark.parametrize("geometry", [LAYER, pytest.param(SHARED, marks=pytest.mark.slow)])
def test_all_cuts_give_the_same_codes(geometry: Geometry, tmp_path: Path) -> None:
    first, wanted = integer_case(geometry, SOFT, 0)
    ways = first.kernel.alternatives
    assert ways is not None
    assert len(ways.cuts) > 1
    with soft_tiles():
        results = run([replace(first, kernel=ways.write(cut)) for cut in ways.cuts], SOFT, tmp_path)
    for cut, result in zip(ways.cuts, results, strict=True):
        np.testing.assert_array_equal(result, wanted, str(cut))


FUSED = ("a sum behind a function", "a function of a sum", "two sums", "a concatenation with a border")


@needs_soft_tiles
@pytest.mark.parametrize("names", [FUSED, pytest.param([*GRAPHS], marks=pytest.mark.slow)], ids=["few", "all"])
def test_what_is_fused_gives_the_same_integers(names: Sequence[str], tmp_path: Path) -> None:
    feeds = samples(*SHAPE)
    networks = {name: quantized(model(GRAPHS[name][0]), feeds) for name in names}
    programs = {name: program_of(network, feeds, SOFT, tmp_path / name) for name, network in networks.items()}
    with soft_tiles():
        assert compared(programs, SOFT, tmp_path).wrong == {}


@needs_soft_tiles
@pytest.mark.usefixtures("small_tiles")
def test_rows_of_any_number(tmp_path: Path) -> None:
    """Also fewer than a tile has."""
    feeds = [{"x": noise(1, length, 32, seed=length)} for length in (9, 2, 21)]
    graph = "g (float[N, S, 32] x) => (float[N, S, 70] y) { a = MatMul(x, v) r = Relu(a) y = MatMul(r, w) }"
    network = quantized(parse(graph, v=noise(32, 40, scale=0.3), w=noise(40, 70, scale=0.2)), feeds)
    program = program_of(network, feeds, SOFT, tmp_path / "job", may_vary=True)
    assert program.lengths
    worker.write(program, SOFT, tmp_path)
    loaded, comparison = worker.load(tmp_path, program), verify.Compared()
    with soft_tiles():
        for path in (tmp_path / "job").glob("values-*.npz"):
            with np.load(path) as values:
                verify.compare(loaded, dict(values), comparison)
    assert comparison.integers > 5000


@needs_soft_tiles
@pytest.mark.usefixtures("small_tiles")
def test_random_networks(tmp_path: Path) -> None:
    with soft_tiles():
        check_networks(0, SOFT, tmp_path, 2)


@needs_soft_tiles
@pytest.mark.slow
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("part", range(12))
def test_many_random_networks(part: int, tmp_path: Path) -> None:
    with soft_tiles():
        check_networks(part, SOFT, tmp_path, TOGETHER)


@needs_soft_tiles
def test_products_of_bfloat16_are_close_to_float64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies behind a run is not read, as it may be no number."""
    monkeypatch.setattr(Library, "kernel", lambda library, name: kernel_in_bounds(library, name, 2 * SLACK))
    geometries = [
        (Window(64, (5, 13)), 32, 1),
        (Window(66, (1, 17)), 10, 1),
        (Window(12, (9, 19), (3, 3), (2, 2)), 48, 1),
        (Window(48, (6, 9), (3, 3)), 34, 2),
        (Window(32, (34, 34), (3, 3)), 64, 1),
    ]
    assert all(Dense(*one[:2], one[2], SOFT, 2).in_tile_registers for one in geometries)
    with soft_tiles():
        test_bfloats.check_products(geometries, SOFT, tmp_path)


@needs_soft_tiles
@pytest.mark.slow
@pytest.mark.usefixtures("small_tiles")
def test_networks_in_bfloat16_give_what_onnxruntime_gives(tmp_path: Path) -> None:
    with soft_tiles():
        test_bfloats.check_networks(SOFT, tmp_path)


@needs_soft_tiles
def test_a_wrong_tile_is_found(tmp_path: Path) -> None:
    case, wanted = integer_case(LAYER, SOFT, 0)
    with soft_tiles(load=7):
        (result,) = run([case], SOFT, tmp_path)
    assert np.any(result != wanted)


@needs_soft_tiles
@pytest.mark.parametrize(
    ("dropped", "fault"),
    [
        (("soft_configure", "soft_release"), "no configuration is loaded"),
        (("soft_release",), "a configuration is loaded already"),
    ],
)
def test_a_missing_configuration_or_release_is_found(
    dropped: tuple[str, ...], fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Isa.emit

    def emit(self: Isa, name: str, *operands: Any) -> None:
        if name not in dropped:
            right(self, name, *operands)

    monkeypatch.setattr(Isa, "emit", emit)
    assert fault_of(LAYER, tmp_path) == fault


@needs_soft_tiles
def test_a_wrong_configuration_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first sums have a row too few."""
    right = vars(TileRegisters)["configuration"].fget

    def wrong(self: TileRegisters) -> np.ndarray:
        result: np.ndarray = right(self)
        result[ROWS] -= 1
        return result

    monkeypatch.setattr(TileRegisters, "configuration", property(wrong))
    assert fault_of(LAYER, tmp_path) == "the shapes of a product do not agree"


@needs_soft_tiles
def test_a_load_beyond_the_input_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where 67 inputs are read as two times 36."""
    monkeypatch.setattr(Library, "kernel", lambda library, name: kernel_in_bounds(library, name, SLACK))
    assert fault_of(Geometry(Window(67, (1, 17)), 10), tmp_path) == "a load reads beyond what may be read"


def fault_of(geometry: Geometry, folder: Path) -> str:
    """The first fault of two calls of a kernel."""
    case, _ = integer_case(geometry, SOFT, 0)
    functions().soft_reset(0)
    run([case, case], SOFT, folder)
    return first_fault()


@given(st.integers(FEW_PIXELS + 1, 70), st.integers(1, 20), st.integers(1, 200), st.integers(1, 130), st.integers(1, 3))
def test_registers_hold_whole_rows_and_loads_end_in_the_slack(
    width: int, height: int, outputs: int, inputs: int, kernel: int
) -> None:
    window = Window(inputs, (height + kernel - 1, width + kernel - 1), (kernel, kernel))
    loops = Dense(window, outputs, 1, isa.AMX_INT8, 1)
    assert loops.has_tile_registers == (inputs * kernel > DOT * (TILE_UNITS - 1))
    if not loops.has_tile_registers:
        return
    count, length = loops.links
    assert length <= loops.tile.k // loops.unit
    assert loops.runs[2] <= count * length * loops.unit <= loops.runs[2] + SLACK
    for cut in loops.cuts:
        registers = TileRegisters(replace(loops, chosen=cut))
        assert registers.rows <= loops.tile.m
        used = registers.count * cut.vectors
        assert used + min(registers.count, cut.vectors) + 1 <= REGISTERS
        covered = {registers.start_of(i, min) + row for i in range(registers.count) for row in range(registers.rows)}
        assert covered == set(range(cut.pixels))


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
@pytest.mark.parametrize("product", ["tdpbusd", "tdpbf16ps"])
def test_the_instructions_are_those_of_amx(product: str, tmp_path: Path) -> None:
    """The registers are configured and released in the task of each thread, which has its memory for itself."""
    chosen, bfloat = isa.AMX_INT8, test_bfloats.case(SHARED.window, SHARED.outputs, 1, isa.AMX_INT8, 0)[0]
    case = integer_case(SHARED, chosen, 0)[0] if product == "tdpbusd" else bfloat
    step = ProgramStep(case.kernel.compile(PROCESSOR), ("x",), "y", "y")
    worker.write(Program((step,), {"x": case.given[0], "y": case.output}, ("x",), ("y",)), chosen, tmp_path)
    command = ["objdump", "-d", str(tmp_path / "amx-int8.so")]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = re.findall(r"ldtilecfg|tileloadd|tdp\w+|tilestored|tilerelease|AllocWorkspace|FreeWorkspace", listing)
    order = [name for place, name in enumerate(names) if place == 0 or names[place - 1] != name]
    assert order[:2] == ["AllocWorkspace", "ldtilecfg"]
    assert order[-3:] == ["tilestored", "tilerelease", "FreeWorkspace"]
    assert set(order[2:-3]) == {"tileloadd", product}


def test_kernels_are_not_timed_where_they_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interface, "processor_features", lambda: frozenset(isa.AVX512_BF16.features))
    with pytest.raises(TargetError, match="is for amx-int8, this processor has no amx_bf16, amx_int8, amx_tile"):
        tuning.measure(Program((), {}, (), ()), isa.AMX_INT8, "quick", None)


def test_a_system_that_refuses_the_registers_gets_the_next_library(monkeypatch: pytest.MonkeyPatch) -> None:
    features = frozenset(isa.AMX_INT8.features)
    for module in (interface, isa):
        monkeypatch.setattr(module, "processor_features", lambda: features)
    monkeypatch.setattr(interface, "refused_tiles", lambda: None)
    builds = tuple(Build(one.name, one.machine, one.features) for one in (isa.AMX_INT8, isa.AVX512_VBMI))
    assert Interface(builds, "", (), ()).choose().isa == "amx-int8"
    assert isa.named("host") is isa.AVX512_BF16
    monkeypatch.setattr(interface, "refused_tiles", lambda: "the system does not let this process use AMX")
    assert Interface(builds, "", (), ()).choose().isa == "avx512-vbmi"
