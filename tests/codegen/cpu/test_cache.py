"""A library is built once for the same kernels and tools; constants lie beside it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from ptqc.codegen.cpu import isa, package, worker
from ptqc.codegen.kernels import linking
from ptqc.codegen.kernels import package as kernels_package
from ptqc.codegen.kernels.families import pointwise
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.writing import PROCESSOR
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import Program, ProgramStep, Weights
from ptqc.utils.store import Store

LAYOUT = Layout((3,), "uint8", is_io=True)


def table(shift: int) -> Program:
    kernel = pointwise.table(LAYOUT, LAYOUT, isa.AVX2, (np.arange(256) + shift) % 256).compile(PROCESSOR)
    return Program((ProgramStep(kernel, ("x",), "y", "y"),), {"x": LAYOUT, "y": LAYOUT}, ("x",), ("y",))


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The paths that were really linked."""
    result: list[Path] = []
    right = package.link

    def link(module: Any, chosen: Isa, path: Path) -> None:
        result.append(path)
        right(module, chosen, path)

    monkeypatch.setattr(package, "link", link)
    return result


def build(program: Program, folder: Path, store: Store) -> bytes:
    folder.mkdir()
    worker.write(program, isa.AVX2, folder, store)
    return (folder / "avx2.so").read_bytes()


def test_a_library_is_built_once(links: list[Path], tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    first = build(table(1), tmp_path / "a", store)
    assert build(table(1), tmp_path / "b", store) == first
    assert len(links) == 1
    loaded = worker.load(tmp_path / "b", table(1))
    x = np.array([[0, 7, 255]], np.uint8)
    np.testing.assert_array_equal(loaded(loaded.listing.calls[0], [x], 1), [[1, 8, 0]])


def test_other_constants_are_other_weights_of_the_same_library(links: list[Path], tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    assert build(table(1), tmp_path / "a", store) == build(table(2), tmp_path / "b", store)
    assert len(links) == 1
    loaded = worker.load(tmp_path / "b", table(2))
    np.testing.assert_array_equal(loaded(loaded.listing.calls[0], [np.array([[0, 7, 255]], np.uint8)], 1), [[2, 9, 1]])


def test_a_damaged_library_is_built_again(links: list[Path], tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    first = build(table(1), tmp_path / "a", store)
    (kept,) = store.folder.glob("*/library.so")
    kept.write_bytes(b"damaged")
    assert build(table(1), tmp_path / "b", store) == first
    assert len(links) == 2


def test_other_tools_are_another_library(monkeypatch: pytest.MonkeyPatch) -> None:
    module = kernels_package.module(table(1), Weights(), PROCESSOR)
    here = package._key(module, isa.AVX2)
    assert package._key(module, isa.AVX512_VNNI) != here
    monkeypatch.setattr(linking.metadata, "version", lambda _: "0.0")
    assert package._key(module, isa.AVX2) != here
