"""Libraries for Arm: compiled and linked here, run in an emulator where there is one, else never called verified."""

import json
import os
import shutil
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from building import Case, run
from mostly_slow import mostly_slow
from networks import FEEDS, residual
from test_bfloats import bfloat_cases
from test_dense import GEOMETRIES, Geometry, integer_case, real_case
from test_random_networks import TOGETHER, check_networks

from ptqc.codegen.cpu import emulation, isa, package, target, worker
from ptqc.codegen.cpu.jobs import Choices
from ptqc.codegen.kernels import tiling
from ptqc.codegen.kernels.backend import LayerSpec
from ptqc.codegen.kernels.epilogue import Epilogue, Lookup, Requantization
from ptqc.codegen.kernels.families import dense
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.jobs import write_job
from ptqc.codegen.kernels.tiling import Dense
from ptqc.codegen.program import verify
from ptqc.codegen.program.batching import Batching
from ptqc.codegen.program.constants import Nibbles
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.listing import Listing
from ptqc.codegen.program.program import Program, Window
from ptqc.codegen.targets import TargetOutput
from ptqc.errors import TargetError
from ptqc.utils.machine import machine
from ptqc.utils.store import Store

MACHINE_AARCH64 = 183  # ELF's e_machine
COMPILER = "aarch64-linux-gnu-g++"
SETS = (isa.ARM_NEON, isa.ARM_DOTPROD, isa.ARM_I8MM)
LINKER = """#!/bin/sh
# Stands for a compiler and linker: makes empty objects, and copies that with the kernels to where the library goes.
while [ $# -gt 0 ]; do
    case "$1" in -o) shift; out=$1 ;; lib0.o) object=$1 ;; --version) echo 1; exit ;; esac
    shift
done
cp "${object:-/dev/null}" "$out"
"""

pytestmark = pytest.mark.skipif(machine() == "aarch64", reason="is about compiling for another machine")


def emulated(chosen: Isa) -> None:
    """Skip where nothing emulates Arm."""
    reason = emulation.missing(chosen)
    if reason is None and shutil.which(COMPILER) is None:
        reason = f"{COMPILER} is not installed"
    if reason is not None:
        assert "PTQC_MUST_EMULATE" not in os.environ, reason
        pytest.skip(f"needs qemu-user, g++-aarch64-linux-gnu and TVM's wheels for aarch64: {reason}")


@pytest.fixture(scope="module")
def store(shared_room: Path) -> Path:
    """Keeps the program that runs libraries."""
    return shared_room / "arm"


@pytest.mark.slow
def test_an_object_for_the_machine_comes_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linker = tmp_path / "linker"
    linker.write_text(LINKER)
    linker.chmod(linker.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(linker))
    monkeypatch.delenv(emulation.WHEELS_VARIABLE, raising=False)
    network, file = residual()
    write_job(tmp_path, network.lowered, file, FEEDS, Choices(Batching(2), "arm-neon,arm-dotprod"))
    report = worker.build(tmp_path)
    for name in ("arm-neon.so", "arm-dotprod.so"):
        library = (tmp_path / name).read_bytes()
        assert library[:4] == b"\x7fELF"
        assert struct.unpack_from("<H", library, 18) == (MACHINE_AARCH64,)
    assert json.loads((tmp_path / "interface.json").read_text())["libraries"] == [
        {"isa": "arm-dotprod", "machine": "aarch64", "features": ["asimd", "asimddp"]},
        {"isa": "arm-neon", "machine": "aarch64", "features": ["asimd"]},
    ]
    assert "is for Linux on aarch64" in report["libraries"][0]["verification"]["missing"]


def test_an_absent_linker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(TargetError, match=r"links for aarch64 with aarch64-linux-gnu-g\+\+, which is not here"):
        package.linker(isa.ARM_NEON)


def test_no_product_of_bytes_overflows() -> None:
    """What `isa._neon` relies on: a code times any int8 weight fits in 16 bits."""
    products = np.arange(256)[:, None] * np.arange(-128, 128)[None]
    assert np.iinfo(np.int16).min <= products.min() <= products.max() <= np.iinfo(np.int16).max


def test_what_emulation_lacks_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert emulation.missing(isa.AVX2) == "nothing emulates x86_64"
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    assert emulation.missing(isa.ARM_NEON) == "qemu-aarch64 is not installed"
    monkeypatch.setattr(shutil, "which", str)
    monkeypatch.delenv(emulation.WHEELS_VARIABLE, raising=False)
    assert "PTQC_AARCH64_WHEELS does not name a folder" in str(emulation.missing(isa.ARM_NEON))
    monkeypatch.setenv(emulation.WHEELS_VARIABLE, str(tmp_path))
    assert str(emulation.missing(isa.ARM_NEON)).endswith("has no apache_tvm-*.whl")


@pytest.fixture(scope="module")
def built(store: Path, tmp_path_factory: pytest.TempPathFactory) -> TargetOutput:
    """Libraries that were verified in the emulator."""
    emulated(isa.ARM_I8MM)
    network, file = residual()
    folder, names = tmp_path_factory.mktemp("built"), ",".join(one.name for one in SETS)
    return target.build(network.lowered, file, FEEDS, folder, names, store)


def test_a_library_is_verified_in_the_emulator(built: TargetOutput) -> None:
    """Kernel by kernel and whole: no integer differs."""
    libraries = built.document["libraries"]
    assert [one["isa"] for one in libraries] == ["arm-i8mm", "arm-dotprod", "arm-neon"]
    for one in libraries:
        checked = one["verification"]
        assert checked["emulator"] == "qemu-aarch64"
        assert checked["integers_compared"] > 10_000
        assert checked["end_to_end_different"] == {}


@pytest.fixture
def library(built: TargetOutput, store: Path) -> Iterator[emulation.EmulatedLibrary]:
    """A library at work in the emulator."""
    folder = built.files["weights.bin"].parent
    with emulation.EmulatedLibrary.open(folder, isa.ARM_DOTPROD, Store(store)) as opened:
        yield opened


def test_what_fails_in_the_emulator_is_an_error(library: emulation.EmulatedLibrary) -> None:
    with pytest.raises(TargetError, match="failed in qemu-aarch64: the library has no function nothing"):
        library.kernel("nothing")(np.zeros(4, np.float32))
    with pytest.raises(TargetError, match="ended in qemu-aarch64 with"):
        library.kernel("nothing")(np.zeros(4, np.float32))


@pytest.fixture
def in_emulator(store: Path) -> Iterator[Callable[[Sequence[Case], Isa, Path], list[np.ndarray]]]:
    """Runs kernels, see `building.run`, in the emulator."""
    with ExitStack() as opened:

        def run_there(cases: Sequence[Case], chosen: Isa, folder: Path) -> list[np.ndarray]:
            emulated(chosen)

            def load(folder: Path, program: Program) -> verify.Loaded:
                library = emulation.EmulatedLibrary.open(folder, chosen, Store(store))
                return verify.Loaded(Listing.of(program), opened.enter_context(library))

            return run(cases, chosen, folder, load)

        yield run_there


@pytest.mark.long
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("chosen", [isa.ARM_I8MM, *(pytest.param(one, marks=pytest.mark.slow) for one in SETS[:-1])])
def test_layers_of_any_geometry(chosen: Isa, every: int, in_emulator: Any, tmp_path: Path) -> None:
    geometries = GEOMETRIES[::every]
    cases = [integer_case(geometry, chosen, seed) for seed, geometry in enumerate(geometries)]
    codes = in_emulator([case for case, _ in cases], chosen, tmp_path)
    for geometry, result, (_, wanted) in zip(geometries, codes, cases, strict=True):
        np.testing.assert_array_equal(result, wanted, str(geometry))


@pytest.mark.parametrize("chosen", mostly_slow(SETS, isa.ARM_I8MM), ids=lambda chosen: chosen.name)
def test_weights_that_stay_two_to_a_byte(
    chosen: Isa, in_emulator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiling, "CACHED_WEIGHTS", 1000)
    cases = [integer_case(Geometry(Window(n, (1, 1)), 130, reach=8), chosen, n) for n in (64, 516)]
    assert all(isinstance(case.kernel.constants[0], Nibbles) for case, _ in cases)
    for result, (_, wanted) in zip(in_emulator([c for c, _ in cases], chosen, tmp_path), cases, strict=True):
        np.testing.assert_array_equal(result, wanted)


@pytest.mark.long
@pytest.mark.parametrize("chosen", [isa.ARM_BF16], ids=lambda chosen: chosen.name)
def test_products_of_reals(chosen: Isa, in_emulator: Any, tmp_path: Path) -> None:
    reals = [real_case(geometry, chosen, seed) for seed, geometry in enumerate(GEOMETRIES[:6])]
    cases, wanted = zip(*reals, *bfloat_cases(chosen), strict=True)
    for result, expected in zip(in_emulator(cases, chosen, tmp_path), wanted, strict=True):
        assert np.abs(result - expected).max() <= 1e-5 * np.abs(expected).max()


def test_every_code_of_a_table(in_emulator: Any, tmp_path: Path) -> None:
    """Of all 256 codes, behind a layer that gives each of them."""
    entries = np.random.default_rng(0).permutation(256).astype(np.uint8)
    window, codes = Window(1, (16, 16)), np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    x, y = Layout((1, 16, 16), "uint8"), Layout((16, 16, 16), "uint8")
    weights, zeros = np.ones((16, 1, 1, 1), np.int8), np.zeros(16, np.int32)
    layer = LayerSpec(x, y, window, weights, Requantization(zeros, np.ones(16, np.float32)))
    layer = replace(layer, epilogue=Epilogue((Lookup(entries),)))
    kernel = dense.integer(layer, Dense(window, 16, 1, isa.ARM_NEON, 1))
    (result,) = in_emulator([Case(kernel, [x], [codes], y)], isa.ARM_NEON, tmp_path)
    np.testing.assert_array_equal(result, np.broadcast_to(entries[codes], result.shape))


def check_random(part: int, chosen: Isa, store: Path, folder: Path, count: int = TOGETHER) -> None:
    emulated(chosen)
    with ExitStack() as opened:

        def build(program: Program, chosen: Isa, folder: Path) -> verify.Runnable:
            worker.write(program, chosen, folder)
            return opened.enter_context(emulation.EmulatedLibrary.open(folder, chosen, Store(store)))

        check_networks(part, chosen, folder, count, build)


@pytest.mark.slow
def test_random_networks(store: Path, tmp_path: Path) -> None:
    check_random(0, isa.ARM_I8MM, store, tmp_path, 3)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(12))
def test_many_random_networks(part: int, store: Path, tmp_path: Path) -> None:
    check_random(part, SETS[part % len(SETS)], store, tmp_path)
