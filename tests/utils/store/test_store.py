"""The store: what was put comes back, damage is set aside, and no half entry is ever seen."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptqc.errors import Interrupted, UsageError
from ptqc.utils.store import Store, _write_sums, default_folder, digest

KEY = {"model": "abc", "options": {"samples": 64}}
DOCUMENT = {"losses": [0.5, 1e-9], "name": "/conv/\u202e\n"}


def arrays() -> dict[str, np.ndarray]:
    transposed = np.arange(6, dtype=np.float32).reshape(2, 3).T
    return {
        "transposed": transposed,
        "codes": np.array([-8, 7], np.int8),
        "empty": np.zeros((0, 4)),
        "s": np.array(2.5),
    }


def put(store: Store) -> str:
    def further(folder: Path) -> None:
        (folder / "model.bin").write_bytes(b"further")

    return store.put(KEY, DOCUMENT, arrays(), further)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_round_trip(tmp_path: Path) -> None:
    store = Store(tmp_path / "deep" / "store")
    name = put(store)
    entry = store.get(KEY)
    assert entry is not None
    assert entry.document == DOCUMENT
    assert (entry.folder / "model.bin").read_bytes() == b"further"
    for key, wanted in arrays().items():
        assert entry.arrays[key].dtype == wanted.dtype
        assert np.array_equal(entry.arrays[key], wanted)
    assert names(store.folder) == [name] == [digest(KEY)]


def test_no_arrays(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(KEY, [], {})
    entry = store.get(KEY)
    assert entry is not None
    assert dict(entry.arrays) == {}


def test_another_key_is_another_entry(tmp_path: Path) -> None:
    store = Store(tmp_path)
    put(store)
    assert store.get({**KEY, "model": "abd"}) is None
    assert Store(tmp_path / "missing").get(KEY) is None


def test_the_order_of_a_key_does_not_matter() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})


@pytest.mark.parametrize("file", ["entry.json", "arrays.safetensors", "model.bin", "key.json", "sums.json"])
@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_a_damaged_entry_is_set_aside(tmp_path: Path, file: str, damage: str) -> None:
    store = Store(tmp_path)
    place = tmp_path / put(store) / file
    if damage == "changed":
        place.write_bytes(place.read_bytes()[:-1] + b"?")
    else:
        place.unlink()
    assert store.get(KEY) is None
    assert names(tmp_path / "quarantine") == [digest(KEY)]
    put(store)
    assert store.get(KEY) is not None


def test_an_added_file_is_damage(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (tmp_path / put(store) / "extra").write_bytes(b"")
    assert store.get(KEY) is None


def test_an_entry_under_another_name_is_damage(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (tmp_path / put(store)).rename(tmp_path / digest({}))
    assert store.get({}) is None


@pytest.mark.parametrize("name", ["../documents", "{documents}", 5, None, "documents", ["documents"]])
def test_what_names_no_entry_opens_none_and_moves_nothing(tmp_path: Path, name: Any) -> None:
    documents = tmp_path / "documents"
    for folder in (documents, tmp_path / "store" / "documents", tmp_path / "store" / "quarantine" / "documents"):
        folder.mkdir(parents=True)
        (folder / "thesis.txt").write_text("text")
    if isinstance(name, str):
        name = name.format(documents=documents)
    assert Store(tmp_path / "store").open(name) is None
    assert len(list(tmp_path.rglob("thesis.txt"))) == 3
    assert documents.is_dir()


DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("entry.json", b"{"),
        ("entry.json", DEEP),
        ("entry.json", None),
        ("arrays.safetensors", b""),
        ("arrays.safetensors", None),
        ("arrays.safetensors", (2).to_bytes(8, "little") + b"[]"),
        ("arrays.safetensors", (7).to_bytes(8, "little") + b'{"a":1}'),
        ("arrays.safetensors", (8).to_bytes(8, "little") + b'{"a":{}}'),
        ("key.json", DEEP),
    ],
)
def test_what_cannot_be_read_is_damage_whatever_its_sums_say(tmp_path: Path, file: str, content: bytes | None) -> None:
    store = Store(tmp_path)
    folder = tmp_path / put(store)
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(content)
    _write_sums(folder)
    assert store.get(KEY) is None
    assert names(tmp_path) == ["quarantine"]


def test_sums_nested_deeply_are_damage(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (tmp_path / put(store) / "sums.json").write_bytes(DEEP)
    assert store.get(KEY) is None


def test_damage_twice(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for _ in range(2):
        (tmp_path / put(store) / "entry.json").write_text("?")
        assert store.get(KEY) is None
    assert names(tmp_path) == ["quarantine"]


def test_many_writers_of_one_key(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: put(store), range(16))) == {digest(KEY)}
    assert names(tmp_path) == [digest(KEY)]
    assert store.get(KEY) is not None


def test_a_store_that_cannot_be_written(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.folder.write_text("in the way")
    with pytest.raises(Interrupted, match="give another folder with --cache"):
        put(store)


@pytest.mark.parametrize("place", ["file", "file/store"])
def test_a_file_where_the_store_belongs_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match=r"file is a file; choose with --cache"):
        Store(tmp_path / place)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(_folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(Interrupted, match="No space left on device"):
        Store(tmp_path).put(KEY, DOCUMENT, arrays(), fail)
    assert names(tmp_path) == []


def test_an_entry_that_cannot_be_moved_to_its_place(tmp_path: Path) -> None:
    (tmp_path / digest(KEY)).write_text("a file where the entry belongs")
    with pytest.raises(Interrupted):
        put(Store(tmp_path))


def test_default_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTQC_CACHE", "here")
    assert default_folder() == Path("here")
    monkeypatch.delenv("PTQC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "ptqc"
