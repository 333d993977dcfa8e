"""What images were prepared with for a compile holds for all that is done with the artifact later."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from compiling import compiled, product, residual, samples
from PIL import Image

import ptqc
from ptqc.artifact.folder import Artifact
from ptqc.calibration.images import Preprocessing
from ptqc.calibration.inputs import InputSpec
from ptqc.cli.main import main

STATED = Preprocessing(mean=(0.4, 0.5, 0.6), std=0.25, channel_order="BGR")
COUNT = 20


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise, in two folders that are classes."""
    place, random = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for number in range(COUNT):
        folder = place / str(number % 2)
        folder.mkdir(exist_ok=True)
        Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8)).save(folder / f"{number:02}.png")
    return place


@pytest.fixture(scope="module")
def artifact(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return compiled(residual(), images, tmp_path_factory.mktemp("compiled"), "50%", bits=(4,), preprocessing=STATED)


def run(model: object, data: Path, place: Path, **options: object) -> np.ndarray:
    ptqc.run(model, data, output=place, **options)  # type: ignore[arg-type]
    with np.load(place) as outputs:
        return np.asarray(outputs["y"])


def test_it_is_told_and_read_again(artifact: Artifact) -> None:
    assert artifact.manifest["preprocessing"]["channel_order"] == "BGR"
    assert ptqc.load(artifact).preprocessing == replace(STATED, resize=(8, 8), crop=(8, 8), layout="NCHW")


def test_sizes_and_layout_are_those_of_the_model() -> None:
    images, square = InputSpec("x", np.dtype(np.float32), (None, 3, 224, 192)), Preprocessing(resize=256, crop=224)
    assert Preprocessing().resolved([images]) == Preprocessing(resize=(224, 192), crop=(224, 192), layout="NCHW")
    assert square.resolved([images]) == replace(square, layout="NCHW")
    assert Preprocessing(fit="letterbox").resolved([images]).resize == (224, 192)
    open_size = InputSpec("x", np.dtype(np.float32), (None, None, None, 3))
    assert Preprocessing().resolved([open_size]) == Preprocessing(layout="NHWC")
    vector = InputSpec("v", np.dtype(np.float32), (None, 7))
    assert Preprocessing().resolved([vector, images]) == Preprocessing().resolved([images])
    assert Preprocessing().resolved([images, replace(images, shape=(None, 3, 8, 8))]) == Preprocessing()


def test_of_arrays_nothing_is_told(tmp_path: Path) -> None:
    plain = compiled(product(), samples(16), tmp_path, preprocessing=Preprocessing())
    assert plain.manifest["preprocessing"] is None
    assert plain.preprocessing is None


def test_runs_prepare_images_alike(artifact: Artifact, images: Path, tmp_path: Path) -> None:
    kept = run(artifact, images, tmp_path / "kept.npz")
    assert np.array_equal(kept, run(artifact, images, tmp_path / "stated.npz", preprocessing=STATED))
    assert not np.allclose(kept, run(artifact, images, tmp_path / "other.npz", preprocessing=Preprocessing()))


def test_scores_and_comparisons_prepare_images_alike(artifact: Artifact, images: Path) -> None:
    model = artifact.folder.parent / "model.onnx"
    kept, stated = (
        ptqc.evaluate(model, artifact, metric="top-1", data=images, **value)  # type: ignore[arg-type]
        for value in ({}, {"preprocessing": STATED})
    )
    assert [row.score.value for row in kept.models] == [row.score.value for row in stated.models]
    compared = ptqc.compare(model, artifact, data=images)
    assert compared.to_json() != ptqc.compare(model, artifact, data=images, preprocessing=Preprocessing()).to_json()


def test_the_file_of_an_artifact_is_known_without_its_folder(artifact: Artifact, images: Path, tmp_path: Path) -> None:
    kept = ptqc.evaluate(artifact.path, metric="top-1", data=images, preprocessing=STATED)
    assert ptqc.evaluate(artifact.path, metric="top-1", data=images) == kept
    assert main(["run", str(artifact.path), str(images), "-o", str(tmp_path / "y.npz")]) == 0
    with np.load(tmp_path / "y.npz") as outputs:
        assert np.array_equal(outputs["y"], run(artifact, images, tmp_path / "kept.npz"))


def test_other_preprocessing_than_that_of_the_compile_is_warned_of(
    artifact: Artifact, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = replace(STATED, mean=0.5)
    result = ptqc.evaluate(artifact, metric="top-1", data=images, preprocessing=other)
    (note,) = result.notes
    assert note.startswith(
        f"images are prepared with mean 0.5, but {artifact.folder} was compiled with mean (0.4, 0.5,"
    )
    assert f"WARNING: {note}" in str(result)
    assert result.to_json()["notes"] == [note]
    assert ptqc.compare(artifact.path, artifact, data=images, preprocessing=other).notes == (note,)
    assert main(["run", str(artifact.folder), str(images), "-o", str(tmp_path / "y.npz"), "--mean", "0.5"]) == 0
    assert f"WARNING: {note}" in capsys.readouterr().out
    assert ptqc.evaluate(artifact, metric="top-1", data=images).notes == ()


def test_images_for_what_was_compiled_on_arrays_are_warned_of(images: Path, tmp_path: Path) -> None:
    plain = compiled(residual(), samples(3, 8, 8), tmp_path, bits=(4,))
    (note,) = ptqc.evaluate(plain, metric="top-1", data=images).notes
    assert note.startswith(f"{plain.folder} was compiled on arrays, so that nothing says how its images are prepared")
    assert ptqc.evaluate(plain, metric="top-1", data=images, preprocessing=Preprocessing()).notes == ()
    arrays = {"x": samples(3, 8, 8, count=COUNT), "labels": np.zeros(COUNT, int)}
    assert ptqc.evaluate(plain, metric="top-1", data=arrays).notes == ()


def test_another_budget_keeps_it(artifact: Artifact, tmp_path: Path) -> None:
    smaller = ptqc.resolve(artifact, budget="30%", output=tmp_path / "smaller", cache=artifact.folder.parent / "cache")
    assert smaller.preprocessing == artifact.preprocessing


def test_arrays_are_taken_as_they_are(artifact: Artifact, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(1).standard_normal((4, 3, 8, 8)).astype(np.float32))
    kept = run(artifact, tmp_path / "x.npz", tmp_path / "kept.npz")
    model = artifact.folder / "model.onnx"
    assert np.array_equal(kept, run(model, tmp_path / "x.npz", tmp_path / "plain.npz"))
