"""The committed networks are what the catalogue says they are."""

from pathlib import Path

import catalogue
import digits
import evaluation
import numpy as np
import onnx
import onnxruntime as ort
import pytest

MODELS = Path(__file__).resolve().parents[2] / "models"
NETWORKS = catalogue.networks()

# Another processor rounds sums differently; a single sample of the smallest evaluation set is worth less than this.
SCORE_TOLERANCE = 0.1


@pytest.fixture(params=sorted(NETWORKS))
def entry(request: pytest.FixtureRequest) -> catalogue.Network:
    return NETWORKS[request.param]


def session(entry: catalogue.Network) -> ort.InferenceSession:
    return ort.InferenceSession(str(entry.path), providers=["CPUExecutionProvider"])


def test_every_onnx_file_is_in_the_catalogue() -> None:
    assert {path.name for path in MODELS.glob("*.onnx")} == {entry.file for entry in NETWORKS.values()}


def test_every_network_has_a_task_and_a_recipe() -> None:
    assert NETWORKS.keys() == evaluation.TASKS.keys()
    for name, entry in NETWORKS.items():
        assert entry.recipe == f"{name}.py"
        assert (MODELS / entry.recipe).is_file()
        assert entry.unit == evaluation.TASKS[name].unit


def test_file_has_its_recorded_hash(entry: catalogue.Network) -> None:
    assert catalogue.digest(entry.path) == entry.sha256


@pytest.mark.parametrize("data", catalogue.arrays(), ids=lambda data: data.file)
def test_data_file_has_its_recorded_hash(data: catalogue.Arrays) -> None:
    assert catalogue.digest(data.path) == data.sha256


def test_file_is_valid_and_has_its_recorded_weights(entry: catalogue.Network) -> None:
    model = onnx.load(entry.path)
    onnx.checker.check_model(model, full_check=True)
    assert sum(int(np.prod(tensor.dims)) for tensor in model.graph.initializer) == entry.weights


def test_float_score_is_the_recorded_one(entry: catalogue.Network) -> None:
    network = session(entry)
    score = evaluation.TASKS[entry.name].score(lambda feeds: network.run(None, feeds)[0])
    assert score == pytest.approx(entry.score, abs=SCORE_TOLERANCE)


@pytest.mark.parametrize("batch", [1, 3])
def test_batch_is_symbolic(entry: catalogue.Network, batch: int) -> None:
    network = session(entry)
    feeds = evaluation.TASKS[entry.name].calibration(batch)
    assert all(value.shape[0] == "N" for value in [*network.get_inputs(), *network.get_outputs()])
    assert network.run(None, feeds)[0].shape[0] == batch


def test_no_evaluation_sample_was_trained_on() -> None:
    (trained, _), (held_out, _) = digits.split()
    seen = {image.tobytes() for image in trained}
    assert not any(image.tobytes() in seen for image in held_out)


def test_committed_digits_are_what_the_rule_gives() -> None:
    inputs, labels = digits.evaluation()
    stored = np.load(MODELS / "digits_evaluation.npz")
    np.testing.assert_allclose(stored["input"], inputs, atol=digits.PIXEL_STEP)
    np.testing.assert_array_equal(stored["labels"], labels)
    np.testing.assert_allclose(
        np.load(MODELS / "digits_calibration.npz")["input"], digits.calibration(), atol=digits.PIXEL_STEP
    )
