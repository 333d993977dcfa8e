"""The samples that changed most are those of the largest loss, with what NumPy finds that both models say of them."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from compiling import compiled, proto, residual, samples, weight
from PIL import Image

from ptqc.artifact.folder import Artifact
from ptqc.evaluation.detection.detector import Detector

DATA = samples(3, 8, 8)


def place_of(sample: dict[str, Any]) -> int:
    """Of a sample that is told as samples[3]."""
    return int(sample["sample"].removeprefix("samples[").removesuffix("]"))


def probabilities(model: bytes, x: np.ndarray) -> np.ndarray:
    scores = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x[None]})[0][0]
    powers = np.exp(scores.astype(np.float64) - scores.max())
    return np.asarray(powers / powers.sum())


def divergence(coarse: Artifact, x: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    p, q = probabilities(residual().SerializeToString(), x), probabilities(coarse.path.read_bytes(), x)
    return float((p * np.log(p / q)).sum()), p, q


def test_they_come_by_falling_loss(coarse: Artifact) -> None:
    document = coarse.most_changed
    assert document is not None
    result = document["samples"]
    losses = [sample["loss"] for sample in result]
    changed = [sample["outputs"][0]["float"][0][0] != sample["outputs"][0]["compiled"][0][0] for sample in result]
    assert document["differing"] == sum(changed)
    assert len(result) == max(4, sum(changed))
    assert changed == sorted(changed, reverse=True)
    for kind in (True, False):
        group = [loss for loss, is_changed in zip(losses, changed, strict=True) if is_changed == kind]
        assert group == sorted(group, reverse=True)
    for sample in result:
        loss, p, q = divergence(coarse, DATA[place_of(sample)])
        assert sample["loss"] == pytest.approx(loss, rel=1e-4)
        (output,) = sample["outputs"]
        assert [label for label, _ in output["float"]] == np.argsort(-p)[:3].tolist()
        assert [share for _, share in output["compiled"]] == pytest.approx(np.sort(q)[::-1][:3], rel=1e-4)
        assert output["place"] == ""


def test_pictures_are_what_the_model_sees(coarse: Artifact) -> None:
    document = coarse.most_changed
    assert document is not None
    sample = document["samples"][0]
    kind, _, content = sample["pictures"]["x"].partition(",")
    assert kind == "data:image/jpeg;base64"
    picture = Image.open(io.BytesIO(base64.b64decode(content)))
    assert picture.size == (160, 160)
    shown = np.asarray(picture, np.float64).reshape(8, 20, 8, 20, 3).mean((1, 3))
    value = np.moveaxis(DATA[place_of(sample)], 0, -1)
    assert np.corrcoef(shown.mean(-1).ravel(), value.mean(-1).ravel())[0, 1] > 0.95


def test_the_report_shows_them(coarse: Artifact) -> None:
    page = (coarse.folder / "report.html").read_text()
    assert page.count('<img src="data:image/jpeg;base64,') == 4
    assert 'id="changed"' in page


DETECTOR = """g (float[1,3,32,32] x) => (float[1,16,7] y) {
    f = Conv<strides=[8,8]>(x, w, b)  r = Relu(f)
    d = Conv(r, wd, bd)  s = Conv(r, ws, bs)  p = Sigmoid(s)
    c = Concat<axis=1>(d, p)  q = Reshape(c, shape)  y = Transpose<perm=[0,2,1]>(q)
}"""


@pytest.mark.slow
def test_a_detector_shows_what_it_finds(tmp_path: Path) -> None:
    """Distances of one and a half cells around each middle; three scores, one of them the objectness."""
    constants = {
        "w": weight(8, 3, 8, 8), "b": weight(8, seed=1), "shape": np.array([1, 7, 16]),
        "wd": weight(4, 8, 1, 1, seed=2) / 20, "bd": np.full(4, 1.5, np.float32),
        "ws": weight(3, 8, 1, 1, seed=3), "bs": np.array([2, -1, -1], np.float32),
    }  # fmt: skip
    options = {"bits": (2,), "activations": "float"}
    artifact = compiled(proto(DETECTOR, **constants), samples(1, 3, 32, 32), tmp_path / "guessed", "30%", **options)
    assert artifact.most_changed is not None
    assert artifact.detector is None
    stated = Detector(boxes="distances", columns=("box", "classes"))
    shown = compiled(
        proto(DETECTOR, **constants), samples(1, 3, 32, 32), tmp_path / "told", "30%", detector=stated, **options
    )
    assert shown.most_changed is not None
    assert shown.detector == stated
    for one, other in zip(artifact.most_changed["samples"], shown.most_changed["samples"], strict=True):
        assert other["objects"]["read"] == "distances from the middle of a cell, as of FCOS"
        assert other["objects"]["float"][0] == one["objects"]["float"][0]
    for sample in artifact.most_changed["samples"]:
        objects = sample["objects"]
        assert objects["read"] == "distances from the middle of a cell"
        assert objects["size"] == [32, 32]
        assert objects["float"]
        for one in objects["float"]:
            left, top, right, bottom = one["box"]
            assert 0.4 < right - left <= 1
            assert 0.4 < bottom - top <= 1
    assert (artifact.folder / "report.html").read_text().count("<image ") == 8


def test_nothing_is_shown_where_nothing_changed(tmp_path: Path) -> None:
    exact = compiled(proto("g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"), samples(4), tmp_path, None)
    assert exact.most_changed == {"samples": []}
    assert 'id="changed"' not in (exact.folder / "report.html").read_text()
