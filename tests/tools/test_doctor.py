import json
import re
import shutil
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from ptqc.cli.main import main
from ptqc.codegen import targets
from ptqc.errors import TargetError
from ptqc.tools import doctor
from ptqc.tools.doctor import Examination, Finding, Judgement, examine


def finding(what: str, cache: Path) -> Finding:
    return next(result for result in examine(cache).findings if result.what == what)


def test_this_machine_can_work(tmp_path: Path) -> None:
    """Where the tests run ptqc works; so every check passes, or says what is only missing for more."""
    result = examine(tmp_path)
    assert result.is_well
    record = {each.what: each for each in result.findings}
    assert record["onnxruntime"].found == metadata.version("onnxruntime")
    assert record["solver"].state == Judgement.OK
    assert {f"--target {name}" for name in targets.names()} <= set(record)
    assert str(tmp_path) in record["store"].found
    assert str(result).endswith("ptqc can work here.")


@pytest.mark.parametrize("tool", ["arm-none-eabi-gcc", "qemu-system-arm"])
@pytest.mark.parametrize("is_installed", [True, False])
def test_what_c_source_is_counted_and_run_with(tool: str, is_installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    which = shutil.which
    planted = f"/opt/{tool}" if is_installed else None
    monkeypatch.setattr(shutil, "which", lambda name, *_: planted if name == tool else which(name))
    result = next(each for each in doctor._targets() if each.what.strip() == tool)
    assert result.state == (Judgement.OK if is_installed else Judgement.REMARK)
    line = result.found if is_installed else result.remedy
    counted = {"arm-none-eabi-gcc": "flash", "qemu-system-arm": "source"}[tool]
    assert counted in line
    assert ("apt install" in line) != is_installed


def absent(name: str) -> Callable[[str], str]:
    def version(asked: str) -> str:
        if asked == name:
            raise metadata.PackageNotFoundError(asked)
        return "1.0"

    return version


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*_given: object, **_named: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("what", "place", "planted", "expected", "remedy", "state"),
    [
        ("numpy", "metadata.version", absent("numpy"), "not installed", "pip install 'numpy", Judgement.LACK),
        ("torch", "metadata.version", absent("torch"), "not installed", "ptqc[torch]", Judgement.REMARK),
        ("tokenizers", "metadata.version", absent("tokenizers"), "not installed", "ptqc[text]", Judgement.REMARK),
        (
            "highspy",
            "metadata.version",
            lambda _name: "9.0",
            "9.0, but ptqc needs",
            "pip install 'highspy",
            Judgement.LACK,
        ),
        ("memory", "available_bytes", lambda: 2**30, "1.0 GiB free", "fewer --samples", Judgement.REMARK),
        ("ONNX Runtime", "saturation.product", raising(RuntimeError("no")), "does not run: no", "pip", Judgement.LACK),
        ("ONNX Runtime", "saturation.product", lambda _settings: 1, "wrongly", "another release", Judgement.LACK),
        ("ONNX Runtime", "saturation.saturates", lambda: True, "saturate", "--allow-8bit", Judgement.REMARK),
        ("solver", "solve", raising(OSError("no binary")), "does not run: no binary", "highspy", Judgement.LACK),
    ],
)
def test_what_is_lacking_says_what_to_do(
    what: str,
    place: str,
    planted: object,
    expected: str,
    remedy: str,
    state: Judgement,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"ptqc.tools.doctor.{place}", planted)
    result = finding(what, tmp_path)
    assert expected in result.found
    assert remedy in result.remedy
    assert result.state == state


@pytest.mark.parametrize(
    ("name", "place", "remedy"),
    [
        ("cpu", "ptqc.codegen.cpu.target.find_spec", "pip install 'ptqc[tvm]'"),
        ("cuda", "ptqc.codegen.cuda.target.find_spec", "pip install 'ptqc[cuda]'"),
    ],
)
def test_a_target_without_tvm_names_the_extra_with_all_that_it_needs(
    name: str, place: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, lambda _name: None)
    result = finding(f"--target {name}", tmp_path)
    assert result.remedy.endswith(remedy)
    assert result.state == Judgement.REMARK


def test_formats_that_cannot_be_fitted_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    result = finding("formats tcq", tmp_path)
    assert "need Numba: pip install" in result.found
    assert result.state == Judgement.REMARK


def test_remedies_name_extras_that_the_distribution_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For someone who has installed a wheel, pip finds the extra in what is installed."""
    extras = set(metadata.metadata("ptqc").get_all("Provides-Extra") or ())
    monkeypatch.setattr("ptqc.tools.doctor.metadata.version", lambda _name: "0.0")
    text = " ".join(each.remedy for each in examine(tmp_path).findings)
    named = set(re.findall(r"ptqc\[(\w+)\]", text))
    assert {"torch", "text"} <= named <= extras


def test_a_target_without_a_compiler_says_which_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("ptqc.codegen.cpu.package.shutil.which", lambda _name: None)
    assert "install the package g++, or name a compiler in CXX" in finding("--target cpu", tmp_path).remedy


def test_a_target_that_is_not_to_be_had_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing:
        check_present = staticmethod(raising(TargetError("install it")))

    monkeypatch.setattr(targets, "target_named", lambda _name: Missing)
    result = examine(tmp_path)
    assert result.is_well
    assert [each.remedy for each in result.findings if each.what == "--target cpu"] == ["install it"]


def test_a_file_in_the_place_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = finding("store", tmp_path / "file")
    assert result.state == Judgement.LACK
    assert "is a file" in result.found
    assert "--cache" in result.remedy


def test_the_command_tells_scripts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["doctor", "--json", "--cache", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["is_well"]
    monkeypatch.setattr(
        doctor, "examine", lambda _cache: Examination((Finding("one", "gone", Judgement.LACK, "get it"),))
    )
    assert main(["doctor"]) == 3
    out, err = capsys.readouterr()
    assert "get it" in out
    assert "cannot work here: 1 of these" in out
    assert "is missing" in err
    assert main(["doctor", "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert not document["is_well"]
    assert document["error"]["kind"] == "Interrupted"


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a folder in which nobody can write")
def test_a_store_where_nothing_can_be_written_is_a_lack(capsys: pytest.CaptureFixture[str]) -> None:
    """The system says of /proc that root may write there."""
    assert main(["doctor", "--cache", "/proc/nope"]) == 3
    assert "lack    store                  /proc/nope cannot be written to" in capsys.readouterr().out
