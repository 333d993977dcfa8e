"""A store is weighed and emptied while others read and write it; what they use stays."""

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from ptqc.cli import main as cli
from ptqc.utils.store import QUARANTINE, Cleared, Contents, Store, clear, contents

ARRAYS = {"a": np.arange(1000, dtype=np.float32)}


def key(number: int) -> dict[str, int]:
    return {"number": number}


def filled(folder: Path, count: int = 3) -> Store:
    store = Store(folder / "store")
    for number in range(count):
        store.put(key(number), {}, ARRAYS)
    return store


def test_a_store_is_weighed(tmp_path: Path) -> None:
    store = filled(tmp_path)
    size = sum(path.stat().st_size for path in store.folder.rglob("*") if path.is_file())
    assert contents(store) == Contents(3, 0, size)
    assert contents(Store(tmp_path / "nowhere")) == Contents(0, 0, 0)


def test_a_store_is_emptied_and_foreign_files_stay(tmp_path: Path) -> None:
    store = filled(tmp_path)
    (store.folder / "notes.txt").write_text("mine")
    (store.folder / "thesis").mkdir()
    size = contents(store).bytes
    assert clear(store) == Cleared(Contents(3, 0, size), 0)
    assert sorted(path.name for path in store.folder.iterdir()) == ["notes.txt", "thesis"]
    assert store.get(key(0)) is None


def test_damaged_and_unfinished_entries_go_too(tmp_path: Path) -> None:
    store = filled(tmp_path)
    for path in store.folder.glob("*/entry.json"):
        path.write_text("?")
    assert store.get(key(0)) is None  # sets it aside
    (store.folder / ".new-killed").mkdir()
    (store.folder / ".new-killed" / "part").write_bytes(b"x")
    del store
    store = Store(tmp_path / "store")
    assert contents(store).others == 1
    assert clear(store).removed.entries == 3
    assert [path.name for path in store.folder.iterdir()] == [QUARANTINE]


def test_what_a_store_object_opened_stays(tmp_path: Path) -> None:
    reader, store = filled(tmp_path), Store(tmp_path / "store")
    assert reader.get(key(1)) is not None
    assert clear(store).in_use == 1
    assert store.get(key(0)) is None
    assert reader.get(key(1)) is not None
    del reader
    assert clear(Store(tmp_path / "store")).removed.entries == 1


def test_a_dead_process_keeps_nothing(tmp_path: Path) -> None:
    store = filled(tmp_path)
    code = (
        "import sys; from ptqc.utils.store import *; s = Store(Path(sys.argv[1])); "
        "s.get({'number': 0}); print(1); input()"
    )
    command = [sys.executable, "-u", "-c", code, str(store.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert clear(store).in_use == 1
        process.kill()
        process.wait()
        assert clear(store).removed.entries == 1


@pytest.mark.long
def test_everyone_at_once(tmp_path: Path) -> None:
    """Threads write, read and clear the same keys: each read gives the whole entry or none, and nothing is raised."""
    folder, until = tmp_path / "store", time.monotonic() + 3

    def work(step: Callable[[], int]) -> int:
        done = 0
        while time.monotonic() < until:
            done += step()
        return done

    def write() -> int:
        return len([Store(folder).put(key(number), {}, ARRAYS) for number in range(4)])

    def read() -> int:
        result = [Store(folder).get(key(number)) for number in range(4)]
        assert all(np.array_equal(entry.arrays["a"], ARRAYS["a"]) for entry in result if entry is not None)
        return sum(entry is not None for entry in result)

    def empty() -> int:
        return clear(Store(folder)).removed.entries

    with ThreadPoolExecutor(6) as pool:
        written, _, seen, _, removed, _ = pool.map(work, (write, write, read, read, empty, empty))
    assert written > 8
    assert seen > 0
    assert removed > 0
    clear(Store(folder))
    assert contents(Store(folder)).others == 0


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = filled(tmp_path)
    assert cli.main(["cache", "size", "--cache", str(store.folder)]) == 0
    assert capsys.readouterr().out == f"3 entries, 0.0 MB in {store.folder}\n"
    assert cli.main(["cache", "clear", "--cache", str(store.folder)]) == 0
    assert capsys.readouterr().out == f"removed 3 entries, 0.0 MB in {store.folder}\n"
    (tmp_path / "file").write_text("in the way")
    assert cli.main(["cache", "clear", "--cache", str(tmp_path / "file")]) == 2
    assert "is a file" in capsys.readouterr().err
