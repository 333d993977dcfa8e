"""A library is built once for the same kernels, chips and tools."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("tvm.tirx", reason="the cuda target needs Apache TVM")

from ptqc.codegen.cuda import package
from ptqc.codegen.cuda.machine_code import KernelCode
from ptqc.codegen.cuda.toolkit import Image
from ptqc.codegen.kernels import linking
from ptqc.utils.store import Store

TOOLS: Any = SimpleNamespace(version="13.0.88")

CODE = KernelCode(40, 1024, 0, 12)


class Script:
    """A function of a module."""

    def __init__(self, text: str) -> None:
        self.text = text

    def script(self) -> str:
        return self.text


def module(text: str = "main") -> Any:
    return {"prepare": Script("prepare"), "workspace": Script("workspace"), "main": Script(text)}


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was really compiled, by the chips."""
    result: list[str] = []

    def link(_module: Any, _tools: Any, gpus: Sequence[str], room: Path, path: Path) -> Image:
        result.append(",".join(gpus))
        path.write_bytes(b"library")
        (room / "abc.fatbin").write_bytes(b"image")
        return Image(room / "abc.fatbin", "ptx", {gpu: {"dense": CODE} for gpu in gpus})

    monkeypatch.setattr(package, "link", link)
    return result


def test_a_library_and_its_image_are_built_once(links: list[str], tmp_path: Path) -> None:
    store, result = Store(tmp_path / "store"), []
    for name in "ab":
        room = tmp_path / name
        room.mkdir()
        image = package.write_library(module(), TOOLS, ["sm_80", "sm_90a"], room, room / "cuda.so", store)
        result.append((image.path.read_bytes(), image.ptx, image.codes, (room / "cuda.so").read_bytes()))
        assert image.path.parent == room
    assert links == ["sm_80,sm_90a"]
    assert result[0] == result[1]
    assert result[0][2] == {"sm_80": {"dense": CODE}, "sm_90a": {"dense": CODE}}


def test_without_a_store_it_is_built_every_time(links: list[str], tmp_path: Path) -> None:
    for _ in range(2):
        package.write_library(module(), TOOLS, ["sm_80"], tmp_path, tmp_path / "cuda.so", None)
    assert links == ["sm_80"] * 2
    assert json.loads((tmp_path / "machine_code.json").read_text()) == {"sm_80": {"dense": asdict(CODE)}}


def test_other_kernels_chips_or_tools_are_another_library(monkeypatch: pytest.MonkeyPatch) -> None:
    here = package._key(module(), TOOLS, ["sm_80"])
    newer: Any = SimpleNamespace(version="13.1.0")
    others = [
        package._key(module("another"), TOOLS, ["sm_80"]),
        package._key(module(), newer, ["sm_80"]),
        package._key(module(), TOOLS, ["sm_80", "sm_90a"]),
    ]
    monkeypatch.setattr(linking.metadata, "version", lambda _: "0.0")
    others.append(package._key(module(), TOOLS, ["sm_80"]))
    assert all(key != here for key in others)
