"""The measured frontier of an artifact: every point is a file that was built; nothing else in the folder changes."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from compiling import compiled, digests, quick, residual, samples

import ptqc
from ptqc.artifact.folder import Artifact
from ptqc.cli.main import main
from ptqc.errors import Infeasible, UsageError
from ptqc.execution import speed
from ptqc.tools import sweep as sweeping
from ptqc.tools.sweep import Swept


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return compiled(
        residual(), samples(3, 8, 8), tmp_path_factory.mktemp("sweep"), "14%", bits=(2, 4, 7), activations="integer"
    )


@pytest.fixture(scope="module")
def before(made: Artifact) -> dict[str, str]:
    return digests(made.folder)


def swept(made: Artifact, **options: object) -> Swept:
    with quick(), pytest.MonkeyPatch.context() as patched:
        patched.setattr(speed, "PROFILE_ROUNDS", (1, 1))
        return ptqc.sweep(made.folder, cache=made.folder.parent / "cache", **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def found(made: Artifact, before: dict[str, str]) -> Swept:
    del before
    return swept(made, points=4)


@pytest.mark.long
def test_points_go_from_the_smallest_file_to_the_best(made: Artifact, found: Swept) -> None:
    points = found.document["points"]
    sizes, losses = [point["bytes"] for point in points], [point["loss"] for point in points]
    assert len(points) == 4
    assert sizes == sorted(sizes)
    assert np.diff(np.log(sizes)) == pytest.approx(np.log(sizes[-1] / sizes[0]) / 3, rel=0.3)
    assert losses[0] > 10 * losses[-1] > 0
    assert points[0]["predicted"] > points[-1]["predicted"]
    assert sizes[0] <= 1.02 * made.manifest["allocation"]["smallest_bytes"]


@pytest.mark.long
def test_a_point_is_what_a_file_of_that_size_has(made: Artifact, found: Swept, tmp_path: Path) -> None:
    point = found.document["points"][1]
    with quick():
        resolved = ptqc.resolve(
            made.folder, output=tmp_path / "out", budget=point["limit"], cache=made.folder.parent / "cache"
        )
    assert resolved.path.stat().st_size == pytest.approx(point["bytes"], rel=0.02)
    loss = resolved.manifest["results"]["loss"]
    assert loss / 1.5 < point["loss"] < 2 * loss


def test_only_the_frontier_is_added(made: Artifact, before: dict[str, str], found: Swept) -> None:
    after = digests(made.folder)
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"sweep.json", "manifest.json"}
    again = ptqc.load(made.folder)
    assert {k: v for k, v in again.manifest.items() if k != "files"} == {
        k: v for k, v in made.manifest.items() if k != "files"
    }
    assert json.loads((made.folder / "sweep.json").read_text()) == found.document
    report = (made.folder / "report.html").read_text()
    assert 'id="sweep"' in report
    assert report.count('class="point"') >= 4


def test_sizes_can_be_given(made: Artifact, capsys: pytest.CaptureFixture[str]) -> None:
    cache = str(made.folder.parent / "cache")
    with quick(), pytest.MonkeyPatch.context() as patched:
        patched.setattr(speed, "PROFILE_ROUNDS", (1, 1))
        assert main(["sweep", str(made.folder), "--budgets", "13%,16%", "--cache", cache]) == 0
    points = json.loads((made.folder / "sweep.json").read_text())["points"]
    assert [point["budget"] for point in points] == ["13%", "16%"]
    for point, share in zip(points, (0.13, 0.16), strict=True):
        assert 0.92 * share < point["bytes"] / made.manifest["source"]["bytes"] <= share
    text = capsys.readouterr().out
    assert f"{points[0]['bytes']:,}" in text
    assert "the float model takes" in text


def test_what_there_is_no_time_for_is_left_out(made: Artifact) -> None:
    result = swept(made, points=6, time_limit=1e-3)
    assert len(result.document["points"]) == sweeping.TOGETHER
    assert "there was time for 2 of 6 points" in str(result)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"points": 1}, "points is 1; give a number from 2"),
        ({"budgets": ["13%", "2ms"]}, "'2ms' is not a size"),
        ({"budgets": ["99%same"]}, "'99%same' is not a size"),
    ],
)
def test_what_is_no_frontier_is_refused(made: Artifact, options: dict[str, object], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        swept(made, **options)


def test_a_size_that_no_file_has_is_refused(made: Artifact) -> None:
    with pytest.raises(Infeasible, match="cannot be met"):
        swept(made, budgets=["5%"])


def test_files_that_are_timed_in_groups_keep_their_ratios_to_the_float_model(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = iter([[10.0, 2.0, 4.0], [20.0, 12.0]])  # the machine is half as fast for the second group
    monkeypatch.setattr(sweeping, "TIMED_TOGETHER", 2)
    monkeypatch.setattr(sweeping, "latencies", lambda *_given: next(speeds))
    monkeypatch.setattr(sweeping, "one_sample", lambda *_given: [{}])
    analysis = SimpleNamespace(model=None, held_back=None)
    result = sweeping._times(analysis, [onnx.ModelProto()] * 3)  # type: ignore[arg-type]
    assert result == [15.0, 3.0, 6.0, 9.0]
