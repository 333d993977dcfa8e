"""Random damage to the store: measured again to the same bytes, or refused; never a result from damaged numbers."""

import contextlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import digests, proto, quick, samples, weight

import ptqc
from ptqc.errors import CalibrationError, UsageError
from ptqc.passes.quantize.choose_splits import ChooseSplits
from ptqc.passes.reconstruct.reconstruct import Reconstruct
from ptqc.utils import store

GRAPH = "g (float[N,8] x) => (float[N,8] y) { h = Gemm(x, w) r = Relu(h) y = Gemm(r, v) }"
COUNT, SAMPLE = 200, 6
Rng = np.random.Generator
Damage = Callable[[Path, Rng], None]


def flipped(path: Path, rng: Rng) -> None:
    data = bytearray(path.read_bytes())
    data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    path.write_bytes(data)


def cut(path: Path, rng: Rng) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(rng.integers(len(data)))])


def longer(path: Path, rng: Rng) -> None:
    path.write_bytes(path.read_bytes() + rng.bytes(3))


def missing(path: Path, _rng: Rng) -> None:
    path.unlink()


def swapped(path: Path, rng: Rng) -> None:
    """With another file of the entry."""
    others = [other for other in path.parent.rglob("*") if other.is_file() and other != path]
    other = others[int(rng.integers(len(others)))]
    here, there = path.read_bytes(), other.read_bytes()
    path.write_bytes(there)
    other.write_bytes(here)


def zeros(path: Path, _rng: Rng) -> None:
    """What a file system may make of a file whose data never reached the disk."""
    path.write_bytes(bytes(path.stat().st_size))


def a_folder(path: Path, _rng: Rng) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: tuple[Damage, ...] = (flipped, cut, longer, missing, swapped, zeros, a_folder)


@dataclass(frozen=True)
class Made:
    """A compile that nothing disturbed: its folder holds model, samples, cache and output."""

    folder: Path

    @property
    def files(self) -> dict[str, str]:
        return digests(self.folder / "out")

    def compile(self, cache: Path, output: Path) -> dict[str, str]:
        model, data = self.folder / "m.onnx", np.load(self.folder / "x.npy")
        with quick():
            ptqc.compile(model, calibration=data, output=output, cache=cache, bits=(3, 4))
        return digests(output)

    def resolve(self, cache: Path, output: Path) -> dict[str, str]:
        with quick():
            ptqc.resolve(self.folder / "out", output=output, cache=cache)
        return digests(output)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    onnx.save(proto(GRAPH, w=weight(8, 8), v=weight(8, 8, seed=1)), folder / "m.onnx")
    np.save(folder / "x.npy", samples(8, count=8))
    result = Made(folder)
    result.compile(folder / "cache", folder / "out")
    return result


def step_of(entry: Path) -> str:
    """What made an entry."""
    return str(json.loads((entry / "key.json").read_text())["step"])


def check(made: Made, number: int, folder: Path) -> str:
    """What came of damage: "made again", or "refused" where a resolve has nothing to resolve."""
    rng = np.random.default_rng((4711, number))
    shutil.copytree(made.folder / "cache", folder / "cache")
    steps = {entry: step_of(entry) for entry in (folder / "cache").iterdir()}
    # What a resolve reads is split already.
    entries = [entry for entry, step in steps.items() if number % 2 or step != ChooseSplits.name]
    paths = sorted(path for entry in entries for path in entry.rglob("*") if path.is_file())
    chosen = paths[int(rng.integers(len(paths)))]
    step = next(step for entry, step in steps.items() if chosen.is_relative_to(entry))
    DAMAGES[number % len(DAMAGES)](chosen, rng)
    if number % 2 or step == Reconstruct.name:
        again = made.compile if number % 2 else made.resolve
        assert again(folder / "cache", folder / "out") == made.files
        return "made again"
    with pytest.raises(UsageError, match="are not in the store"):
        made.resolve(folder / "cache", folder / "out")
    assert not (folder / "out").exists()
    return "refused"


def test_a_sample_of_damage(made: Made, tmp_path: Path) -> None:
    for number in range(SAMPLE):
        check(made, number, tmp_path / str(number))


@pytest.mark.slow
def test_much_damage(made: Made, tmp_path: Path) -> None:
    result = [check(made, number, tmp_path / str(number)) for number in range(COUNT)]
    assert result[1::2] == ["made again"] * (COUNT // 2)
    assert set(result[::2]) == {"made again", "refused"}


def test_an_undamaged_store_serves_both(made: Made, tmp_path: Path) -> None:
    shutil.copytree(made.folder / "cache", tmp_path / "cache")
    assert made.compile(tmp_path / "cache", tmp_path / "out") == made.files
    assert made.resolve(tmp_path / "cache", tmp_path / "resolved")


def test_damage_that_is_not_looked_for_would_be_found(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the store's own check damaged measurements are resolved, or end in a trace."""
    monkeypatch.setattr(store, "_is_whole", lambda _folder, _name: True)

    def check_some() -> None:
        for number in range(0, 14, 2):
            with contextlib.suppress(CalibrationError):  # samples have a check of their own
                check(made, number, tmp_path / str(number))

    with pytest.raises((AssertionError, ValueError, OSError, KeyError, pytest.fail.Exception)):
        check_some()
