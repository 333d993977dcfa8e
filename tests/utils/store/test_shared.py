"""A store at a URL: what one machine puts there another one reads, and half of an entry is none."""

import errno
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest
from compiling import compiled, digests, product, samples

from ptqc.errors import Interrupted, UsageError
from ptqc.formats import Integer
from ptqc.passes.quantize import solve_weights
from ptqc.passes.quantize.solve_weights import WeightProblem
from ptqc.utils import store
from ptqc.utils.executors.processes import Processes
from ptqc.utils.store import ENVIRONMENT, SharedStore, Store, digest, discard, store_at

KEY = {"step": "test"}
ARRAYS = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A place that nobody else uses."""
    if request.param == "file":
        yield f"file://{tmp_path / 'place'}"
        return
    yield f"memory://{tmp_path.name}"
    fsspec.filesystem("memory").store.clear()


class Machines:
    """Stores at a URL as several machines have them, each with copies of its own."""

    def __init__(self, url: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.url, self.folder, self.patch = url, folder, patch

    def on(self, name: str) -> SharedStore:
        self.patch.setenv(ENVIRONMENT, str(self.folder / name))
        result = store_at(self.url)
        assert isinstance(result, SharedStore)
        return result


@pytest.fixture
def machines(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    return Machines(url, tmp_path, monkeypatch)


def objects(store: SharedStore) -> list[str]:
    system, root = store.place
    return sorted(path.rpartition("/")[2] for path in system.ls(root, detail=False)) if system.exists(root) else []


def write_more(folder: Path) -> None:
    (folder / "more.txt").write_text("more")


def test_another_machine_reads_what_was_put(machines: Machines) -> None:
    one, two = machines.on("one"), machines.on("two")
    assert two.get(KEY) is None
    assert not two.has(KEY)
    name = one.put(KEY, {"a": 1}, ARRAYS, write_more)
    assert objects(one) == [f"{name}.zip"]
    assert two.has(KEY)
    result = two.get(KEY)
    assert result is not None
    assert result.document == {"a": 1}
    assert np.array_equal(result.arrays["x"], ARRAYS["x"])
    assert (result.folder / "more.txt").read_text() == "more"
    assert {path.name for path in two.folder.iterdir()} == {name}


@pytest.mark.parametrize("part", ["half", "changed"])
def test_half_or_changed_objects_are_none_until_they_are_put_again(machines: Machines, part: str) -> None:
    one, two = machines.on("one"), machines.on("two")
    name = one.put(KEY, {"a": 1}, ARRAYS)
    system, _ = one.place
    whole = system.cat_file(one._object(name))
    changed = whole.replace(ARRAYS["x"].tobytes(), (ARRAYS["x"] + 1).tobytes())
    system.pipe_file(one._object(name), whole[: len(whole) // 2] if part == "half" else changed)
    assert two.get(KEY) is None
    one.put(KEY, {"a": 1}, ARRAYS)
    assert two.get(KEY) is not None


# Of both headers of each file in an archive: where the flags and the way to compress are.
HEADERS = ((b"PK\x03\x04", 6, 8), (b"PK\x01\x02", 8, 10))


@pytest.mark.parametrize(("flags", "method"), [(0, 99), (0, 8), (0, 12), (0, 14), (1, 0)])
def test_what_cannot_be_unpacked_is_none(machines: Machines, flags: int, method: int) -> None:
    one, two = machines.on("one"), machines.on("two")
    name = one.put(KEY, {"a": 1}, ARRAYS)
    system, _ = one.place
    data = bytearray(system.cat_file(one._object(name)))
    for mark, *places in HEADERS:
        for header in re.finditer(re.escape(mark), bytes(data)):
            for place, number in zip(places, (flags, method), strict=True):
                data[header.start() + place] = number
    system.pipe_file(one._object(name), bytes(data))
    assert two.get(KEY) is None
    assert list(two.folder.iterdir()) == []


def test_a_disk_that_is_full_is_no_damage(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    machines.on("one").put(KEY, {}, ARRAYS)

    def full(*_given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "extractall", full)
    with pytest.raises(OSError, match="No space left"):
        machines.on("two").get(KEY)


def test_what_names_no_entry_is_asked_of_no_place(machines: Machines) -> None:
    one, name = machines.on("one"), digest({})
    one.put(KEY, {}, ARRAYS)
    system, root = one.place
    system.makedirs(f"{root}/deeper", exist_ok=True)
    system.copy(one._object(digest(KEY)), f"{root}/deeper/{name}.zip")
    assert one.open(f"deeper/{name}") is None
    assert [path.name for path in one.folder.iterdir()] == [digest(KEY)]


def test_what_is_discarded_goes_from_both_places(machines: Machines) -> None:
    name = machines.on("one").put(KEY, {}, ARRAYS)
    one = machines.on("one")
    discard(one, name)
    discard(one, name)
    assert objects(one) == []
    assert list(one.folder.iterdir()) == []
    assert machines.on("two").get(KEY) is None


def test_a_storage_that_fails_stops_the_work(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    one = machines.on("one")

    def fails(*_given: object, **_named: object) -> None:
        raise RuntimeError("no credentials")

    for method in ("put_file", "get_file"):
        monkeypatch.setattr(one.place[0], method, fails)
    with pytest.raises(Interrupted, match=r"cannot reach the store .*: no credentials; see that"):
        one.put(KEY, {}, ARRAYS)
    with pytest.raises(Interrupted, match="no credentials"):
        machines.on("two").get(KEY)


def test_urls_that_nothing_reads_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"the store teleport://a cannot be used: .*teleport"):
        store_at("teleport://a")
    monkeypatch.setattr(store, "find_spec", lambda _name: None)
    with pytest.raises(UsageError, match=r"needs fsspec, which is not installed: pip install 'ptqc\[fsspec\]'"):
        store_at("s3://bucket")


def test_a_folder_is_no_url(tmp_path: Path) -> None:
    assert type(store_at(tmp_path)) is Store
    assert type(store_at(str(tmp_path))) is Store


def problem() -> WeightProblem:
    return WeightProblem(np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4), [Integer(3)], 0)


def test_workers_in_processes_use_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Machines(f"file://{tmp_path / 'place'}", tmp_path, monkeypatch).on("one")
    with Processes(store, 1) as executor:
        result = executor.solve("one", problem)
        executor.settle(["one"])
    assert [(solution.form, error) for solution, error in result] == [(s.form, e) for s, e in problem().solve()]
    assert objects(store) == []


def test_a_compile_on_another_machine_solves_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machines = Machines(f"file://{tmp_path / 'place'}", tmp_path, monkeypatch)
    artifacts = []
    for name in ("one", "two"):
        store = machines.on(name)
        artifacts.append(compiled(product(), samples(16), tmp_path / f"of {name}", bits=(4,), cache=store.url))
        monkeypatch.setattr(solve_weights, "_problem", None)
    assert digests(artifacts[0].folder) == digests(artifacts[1].folder)


def test_the_name_is_the_digest_of_the_key(machines: Machines) -> None:
    assert machines.on("one").put(KEY, {}, ARRAYS) == digest(KEY)
