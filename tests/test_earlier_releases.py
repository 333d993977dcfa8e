"""Every release opens, runs, verifies and resolves what the earlier ones left (`tests/fixtures/make_release.py`)."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiling import kept_budgets, quick

import ptqc
from ptqc.artifact.folder import Artifact
from ptqc.artifact.golden import Golden
from ptqc.cli.main import main
from ptqc.errors import UsageError

RELEASES = Path(__file__).parent / "fixtures" / "releases"
AGAIN = "tests/fixtures/make_release.py --again makes the folder of a version that is not released yet"

pytestmark = pytest.mark.processor


def minor(version: str) -> list[str]:
    return version.split(".")[:2]


@pytest.fixture(params=sorted(path.name for path in RELEASES.iterdir()))
def release(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of what a release left behind: model, artifact, store."""
    return Path(shutil.copytree(RELEASES / request.param, tmp_path / request.param))


def formats(artifact: Artifact) -> dict[str, Any]:
    return {entry["weight"]: entry["format"] for entry in artifact.plan["weights"]}


def test_this_version_has_left_its_own() -> None:
    """Whoever changes the version makes the fixture of the one before it final, and that of the new one."""
    assert (RELEASES / ptqc.__version__).is_dir(), AGAIN


def test_its_artifact_opens_runs_and_verifies(release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artifact = ptqc.load(release / "artifact")
    kept = Golden.read(release / "artifact" / "golden.safetensors")
    result = artifact.run(kept.inputs[0])
    assert np.allclose(result["logits"], kept.outputs[0]["logits"], rtol=1e-3, atol=1e-3)
    assert "golden samples" in ptqc.verify(artifact, model=release / "model.onnx").checks["golden"]
    assert f"{artifact.manifest['file']['bytes']:,} bytes" in artifact.summary()
    for command in ("explain", "bench"):
        assert main([command, str(artifact.folder)]) == 0
    assert "stem" in capsys.readouterr().out


def test_its_measurements_resolve_to_another_budget(release: Path, tmp_path: Path) -> None:
    """Stores are read within a minor version; later ones may refuse them, and say what to do."""
    made: Artifact | str
    with quick():
        try:
            made = ptqc.resolve(release / "artifact", budget="50%", output=tmp_path / "made", cache=release / "store")
        except UsageError as error:
            made = str(error)
    if isinstance(made, str):
        assert minor(release.name) != minor(ptqc.__version__), f"{made}; {AGAIN}"
        assert "`ptqc compile`" in made
    else:
        assert kept_budgets(made)["size"]
        ptqc.verify(made, model=release / "model.onnx")


def test_its_plan_is_followed(release: Path, tmp_path: Path) -> None:
    plan = json.loads((release / "artifact" / "plan.json").read_text())
    with quick():
        made = ptqc.compile(
            release / "model.onnx",
            calibration=np.random.default_rng(1).standard_normal((16, 3, 8, 8)).astype(np.float32),
            budget="80%",
            output=tmp_path / "out",
            cache=tmp_path / "store",
        )
        followed = ptqc.resolve(made, plan=plan, output=tmp_path / "followed", cache=tmp_path / "store")
    assert formats(followed) == formats(Artifact(release / "artifact")) != formats(made)
    ptqc.verify(followed, model=release / "model.onnx")
