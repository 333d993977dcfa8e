"""A target is a folder of its own: the compile, the artifact and the report take one that they have never seen."""

import re
import shutil
from pathlib import Path

import pytest
from compiling import compiled, proto, residual, samples, weight

import ptqc
import ptqc.codegen
from ptqc.artifact.folder import load
from ptqc.cli.main import main
from ptqc.codegen import targets
from ptqc.codegen.targets import target_named
from ptqc.errors import TargetError, UsageError

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "plugin" / "ptqc_example"


@pytest.fixture
def listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a target whose folder lies beside those of the project."""
    shutil.copytree(EXAMPLE / "listing", tmp_path / "rooms" / "listing")
    monkeypatch.setattr(ptqc.codegen, "__path__", [*ptqc.codegen.__path__, str(tmp_path / "rooms")])
    return "listing"


def test_its_files_are_delivered_and_told(listing: str, tmp_path: Path) -> None:
    artifact = compiled(residual(), samples(3, 8, 8), tmp_path, "25%", target=listing)
    assert b"Conv" in (artifact.folder / "listing" / "operators.txt").read_bytes()
    assert "listing/operators.txt" in load(artifact.folder).manifest["files"]
    operators = artifact.manifest["targets"]["listing"]["operators"]
    assert re.search(rf"^listing +operators {operators}, order as run$", artifact.summary(), re.MULTILINE)
    report = (artifact.folder / "report.html").read_text(encoding="utf-8")
    assert f'<th scope="row">operators</th><td>{operators}</td>' in report
    assert "Native library" not in report
    ptqc.verify(artifact.folder)


@pytest.mark.usefixtures("listing")
def test_it_is_found_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert {"cpu", "listing"} <= set(targets.names())
    with pytest.raises(SystemExit):
        main(["compile", "--help"])
    assert "listing: a list of the operators" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(UsageError, match=r"target is 'none'; known: .*cpu, .*listing"):
        target_named("none")


def test_it_refuses_before_anything_is_measured(listing: str, tmp_path: Path) -> None:
    model = proto("g (float[N,16] x) => (float[N,8] z) { y = Gemm(x, w) z = Sigmoid(y) }", w=weight(16, 8))
    with pytest.raises(TargetError, match="no kernel for Sigmoid"):
        compiled(model, samples(16), tmp_path, None, target=listing)


def test_what_it_builds_cannot_be_timed(listing: str, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"what the target listing builds cannot be timed; .* without @listing"):
        compiled(residual(), samples(3, 8, 8), tmp_path, "2ms@listing", target=listing)
