"""The output folder: whole or not at all, opened with its checks, replaced only where it is ours."""

import hashlib
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from manifests import MANIFEST

from ptqc.artifact import folder as artifact
from ptqc.artifact.folder import Artifact, check_output, load, publish, reserved
from ptqc.errors import IntegrityError, Interrupted, TargetError, UsageError
from ptqc.utils.locks import InUse

FILES = {"model.onnx": b"model", "plan.json": b'{"version": 1}'}
RUN = {"seconds": 1.5}
APART = {"run.json": json.dumps(RUN).encode(), "report.html": b"<!doctype html>"}


def write(folder: Path, files: dict[str, bytes] = FILES, *, force: bool = False) -> artifact.Artifact:
    return publish(folder, files, MANIFEST, APART, force)


def fail(*_arguments: object) -> None:
    raise OSError(28, "No space left on device")


def refuse(*_arguments: object) -> bool:
    return False


def test_a_file_may_come_from_another_place(tmp_path: Path) -> None:
    source = tmp_path / "library.so"
    source.write_bytes(bytes(range(256)) * 5000)
    result = publish(tmp_path / "out", {**FILES, "cpu/avx2.so": source}, MANIFEST, APART, force=False)
    assert (result.folder / "cpu" / "avx2.so").read_bytes() == source.read_bytes()
    assert result.manifest["files"]["cpu/avx2.so"] == hashlib.sha256(source.read_bytes()).hexdigest()


def test_what_is_published_can_be_loaded(tmp_path: Path) -> None:
    write(tmp_path / "out")
    result = load(tmp_path / "out")
    assert result.path.read_bytes() == b"model"
    assert result.plan == {"version": 1}
    assert result.times == RUN
    assert sorted(result.manifest["files"]) == sorted(FILES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_an_artifact_stands_for_its_folder(tmp_path: Path) -> None:
    assert load(write(tmp_path / "out")).folder == tmp_path / "out"


def test_the_same_artifact_has_the_same_bytes(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one"), write(tmp_path / "two")
    assert all((one.folder / p.name).read_bytes() == p.read_bytes() for p in two.folder.iterdir())


def test_an_existing_folder_is_kept_without_force(tmp_path: Path) -> None:
    write(tmp_path / "out")
    with pytest.raises(UsageError, match="exists; give another one"):
        write(tmp_path / "out", {"model.onnx": b"other"})
    assert load(tmp_path / "out").path.read_bytes() == b"model"


def without_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "_exchange", refuse)


@pytest.mark.parametrize("prepare", [lambda _: None, without_exchange], ids=["exchange", "two-renames"])
def test_force_replaces_an_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: Callable[[pytest.MonkeyPatch], None]
) -> None:
    prepare(monkeypatch)
    write(tmp_path / "out")
    write(tmp_path / "out", {"model.onnx": b"other"}, force=True)
    assert load(tmp_path / "out").path.read_bytes() == b"other"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "manifest.json",
        "model.onnx",
        "report.html",
        "run.json",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_force_fills_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write(tmp_path / "out", force=True)
    assert load(tmp_path / "out").path.read_bytes() == b"model"


def test_the_target_of_a_link_is_replaced(tmp_path: Path) -> None:
    write(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write(tmp_path / "link", {"model.onnx": b"other"}, force=True)
    assert (tmp_path / "link").is_symlink()
    assert load(tmp_path / "real").path.read_bytes() == b"other"


@pytest.mark.parametrize("content", [None, "[]", '{"manifest_version": 3, "name": "an extension"}', "not JSON"])
def test_a_foreign_folder_is_never_replaced(tmp_path: Path, content: str | None) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter.txt").write_text("years of work")
    if content is not None:
        (folder / "manifest.json").write_text(content)
    with pytest.raises(UsageError, match="was not written by ptqc"):
        write(folder, force=True)
    assert (folder / "chapter.txt").read_text() == "years of work"


def test_a_file_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(UsageError, match="is a file; give a folder"):
        check_output(tmp_path / "out", force=True)


def test_missing_folders_above_are_made_but_not_in_a_file(tmp_path: Path) -> None:
    check_output(tmp_path / "missing" / "too" / "out", force=False)
    assert not (tmp_path / "missing").exists()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="file is a file"):
        check_output(tmp_path / "file" / "too" / "out", force=False)


def test_the_parent_must_be_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact.os, "access", refuse)
    with pytest.raises(UsageError, match="is not writable"):
        check_output(tmp_path / "out", force=False)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "_write_through", fail)
    with pytest.raises(Interrupted, match="No space left on device; nothing was changed there"):
        write(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_old_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "out")
    monkeypatch.setattr(artifact, "_write_through", fail)
    with pytest.raises(Interrupted):
        write(tmp_path / "out", {"model.onnx": b"other"}, force=True)
    assert load(tmp_path / "out").path.read_bytes() == b"model"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_failed_rename_puts_the_old_artifact_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "out")
    rename = Path.rename

    def rename_but_for_the_new(path: Path, target: Path) -> Path:
        if target == tmp_path / "out" and not path.name.endswith(".old"):
            fail()
        return rename(path, target)

    monkeypatch.setattr(artifact, "_exchange", refuse)
    monkeypatch.setattr(Path, "rename", rename_but_for_the_new)
    with pytest.raises(Interrupted):
        write(tmp_path / "out", {"model.onnx": b"other"}, force=True)
    assert load(tmp_path / "out").path.read_bytes() == b"model"


def test_a_changed_file_is_found(tmp_path: Path) -> None:
    write(tmp_path / "out").path.write_bytes(b"tampered")
    with pytest.raises(IntegrityError, match=r"model\.onnx was changed after it was compiled"):
        load(tmp_path / "out")


def test_a_missing_file_is_found(tmp_path: Path) -> None:
    write(tmp_path / "out").path.unlink()
    with pytest.raises(IntegrityError, match=r"incomplete: model\.onnx is missing"):
        load(tmp_path / "out")


NOT_MANIFESTS = [None, "{", "[]", "{}", "5", '{"files": {}}', '{"ptqc": "0", "files": []}', "[" * 9999]


@pytest.mark.parametrize("content", NOT_MANIFESTS)
def test_what_is_not_an_artifact_is_not_loaded(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(UsageError, match="is not a folder that `ptqc compile` wrote"):
        load(tmp_path)


def test_times_do_not_change_the_checked_files(tmp_path: Path) -> None:
    folder = write(tmp_path / "out").folder
    assert "run.json" not in json.loads((folder / "manifest.json").read_text())["files"]


def test_a_library_that_the_manifest_does_not_list_is_never_run(tmp_path: Path) -> None:
    folder = write(tmp_path / "out").folder
    (folder / "cpu").mkdir()
    (folder / "cpu" / "model.so").write_bytes(b"code")
    with pytest.raises(IntegrityError, match=r"model\.so is not a file that `ptqc compile` wrote"):
        load(folder)


@pytest.mark.parametrize(("target", "device"), [("cpu", ""), ("cuda", "cuda:0")])
def test_nor_is_one_of_an_artifact_that_was_not_loaded(tmp_path: Path, target: str, device: str) -> None:
    folder = write(tmp_path / "out").folder
    document = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**document, "targets": {target: {}}}))
    (folder / target).mkdir()
    (folder / target / "evil.so").write_bytes(b"code")
    with pytest.raises(IntegrityError, match=r"evil\.so is not a file that `ptqc compile` wrote"):
        Artifact(folder).native(device=device)


def test_files_outside_the_folder_are_not_read(tmp_path: Path) -> None:
    folder = write(tmp_path / "out").folder
    (folder / "manifest.json").write_text(json.dumps({"ptqc": "0", "files": {"../secret": "0"}}))
    with pytest.raises(IntegrityError, match=r"lists '\.\./secret', which lies outside"):
        load(folder)


@pytest.mark.parametrize("name", ["a\0b", "a" * 300, "\ud800"])
def test_what_can_be_no_file_is_refused(tmp_path: Path, name: str) -> None:
    result = write(tmp_path / "out")
    listed = {**result.manifest, "files": {**result.manifest["files"], name: "00"}}
    (result.folder / "manifest.json").write_text(json.dumps(listed))
    with pytest.raises(IntegrityError, match=r"the manifest.json of .* lists "):
        load(result.folder)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"notes": 5}, "notes"),
        ({"options": 5}, "options"),
        ({"measurements": 5}, "measurements"),
        ({"results": None}, "results"),
        ({"file": {}}, r"file\.bytes"),
        ({"golden": []}, "golden"),
        ({"cpu": {"session_option_without_vnni": "x"}}, r"cpu\.session_option_without_vnni"),
        ({"targets": [5]}, "targets"),
        ({"labels": "x"}, "labels"),
        ({"recorded": 5}, "recorded"),
        ({"preprocessing": 5}, "preprocessing"),
        ({"target": {}}, r"target\.name"),
        ({"target": {"name": "c", "options": 5}}, r"target\.options"),
        ({"target": {"name": "c", "options": {}}}, "targets"),
        ({"target": {"name": "c", "options": {}}, "targets": {"c": 5}}, r"targets\.c"),
    ],
)
def test_a_manifest_of_another_form_is_refused(tmp_path: Path, change: dict[str, Any], key: str) -> None:
    result = publish(tmp_path / "out", FILES, {**MANIFEST, **change}, APART, force=False)
    with pytest.raises(IntegrityError, match=rf"has no {key} as ptqc writes it; copy the folder again, or compile"):
        load(result)


def test_an_artifact_that_cannot_be_told_of_has_a_name(tmp_path: Path) -> None:
    result = publish(tmp_path / "out", FILES, {**MANIFEST, "notes": 5}, APART, force=False)
    assert repr(result) == f"<ptqc.Artifact {tmp_path / 'out'}: not readable>"


@pytest.mark.parametrize("key", sorted({*artifact.OF_EACH, *artifact.OF_ARTIFACT}))
def test_a_manifest_without_what_each_has_is_refused(tmp_path: Path, key: str) -> None:
    said = {name: value for name, value in MANIFEST.items() if name != key}
    publish(tmp_path / "out", FILES, said, APART, force=False)
    with pytest.raises(IntegrityError, match=f"has no {key} as ptqc"):
        load(tmp_path / "out")


@pytest.mark.parametrize("key", ["preprocessing", "texts", "detector"])
def test_settings_of_another_form_are_refused(tmp_path: Path, key: str) -> None:
    publish(tmp_path / "out", FILES, {**MANIFEST, key: {"x": 1}}, APART, force=False)
    with pytest.raises(IntegrityError, match=r"out is not as `ptqc compile` writes it: .*; copy the folder again"):
        getattr(load(tmp_path / "out"), key)


def test_what_a_killed_compile_left_is_swept_away_and_nothing_else(tmp_path: Path) -> None:
    for name in (".out.ptqc-killed", ".out.ptqc-alive", ".out-mine", ".other.ptqc-killed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.onnx").write_bytes(b"half")
    used = InUse(tmp_path / ".out.ptqc-alive")
    write(tmp_path / "out")
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [".other.ptqc-killed", ".out-mine", ".out.ptqc-alive", "out"]
    del used


@pytest.mark.parametrize(
    ("device", "error", "expected"),
    [
        ("cuda", TargetError, "has no CUDA library; compile with --target cuda"),
        ("cuda:1", TargetError, "has no CUDA library; compile with --target cuda"),
        ("gpu", UsageError, "device is 'gpu'; expected cuda, or cuda:N"),
        ("cuda:-1", UsageError, "device is 'cuda:-1'; expected cuda, or cuda:N"),
    ],
)
def test_a_device_that_nothing_was_built_for_is_refused(
    device: str, error: type[Exception], expected: str, tmp_path: Path
) -> None:
    write(tmp_path / "out")
    with pytest.raises(error, match=expected):
        load(tmp_path / "out").native(device=device)


def test_a_cuda_library_asks_for_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = {"isa": "cuda", "machine": platform.machine(), "features": []}
    interface = {"libraries": [build], "tvm": "any", "threads": 0, "gpus": ["sm_80"], "inputs": [], "outputs": []}
    files: dict[str, bytes | str] = {
        "cuda/cuda.so": b"library",
        "cuda/weights.bin": b"weights",
        "cuda/interface.json": json.dumps(interface),
    }
    values = {**FILES, **{name: data if isinstance(data, bytes) else data.encode() for name, data in files.items()}}
    publish(tmp_path / "out", values, {**MANIFEST, "targets": {"cuda": {}}}, APART, force=False)
    monkeypatch.setattr("ptqc.runtime.cuda_library.check_version", lambda _tvm: None)
    monkeypatch.setattr("ptqc.runtime.cuda.DRIVER", "libcuda.so.of.nobody")
    result = load(tmp_path / "out")
    assert result.runnable == ""  # it runs in ONNX Runtime unless a device is asked for
    with pytest.raises(TargetError, match="needs a GPU with NVIDIA's driver"):
        result.native(device="cuda:0")


def test_an_output_that_another_compile_works_on_is_refused_at_once(tmp_path: Path) -> None:
    with reserved(tmp_path / "new" / "out"):
        text = r"another compile is writing .*/new/out: wait until it ends"
        with pytest.raises(UsageError, match=text), reserved(tmp_path / "new" / "out"):
            pass
        with reserved(tmp_path / "new" / "other"):
            write(tmp_path / "new" / "out")
    with reserved(tmp_path / "new" / "out"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out"]


def test_force_is_offered_for_artifacts_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "diary.txt").write_text("dear diary")
    for force in (False, True):
        with pytest.raises(UsageError, match="exists, and was not written by ptqc") as caught:
            check_output(tmp_path / "out", force)
        assert "or --force" not in str(caught.value)
