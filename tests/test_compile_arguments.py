"""What a compile is given in Python: calibration data, evaluation, labels and options."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from compiling import compiled, product, quick, residual, samples, store_of
from onnx import numpy_helper

import ptqc
from ptqc.artifact.folder import Artifact
from ptqc.errors import CalibrationError, UsageError


class Reader:
    """What ONNX Runtime's quantizer takes."""

    def __init__(self, x: np.ndarray) -> None:
        self._items = iter(x)

    def get_next(self) -> dict[str, np.ndarray] | None:
        item = next(self._items, None)
        return None if item is None else {"x": item[None]}


SOURCES: Mapping[str, Callable[[np.ndarray], object]] = {
    "array": lambda x: x,
    "dict of arrays": lambda x: {"x": x},
    "generator of dicts": lambda x: ({"x": sample[None]} for sample in x),
    "list of arrays": lambda x: [sample[None] for sample in x],
    "reader": Reader,
}


@pytest.fixture(scope="module")
def of_array(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return compiled(product(), samples(16), tmp_path_factory.mktemp("array"))


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_calibration_data_come_in_many_forms(
    of_array: Artifact, tmp_path: Path, source: Callable[[np.ndarray], object]
) -> None:
    result = compiled(product(), source(samples(16)), tmp_path)
    assert result.manifest["calibration"] == of_array.manifest["calibration"]
    assert result.path.read_bytes() == of_array.path.read_bytes()


def test_a_raising_reader_is_named_with_its_sample(tmp_path: Path) -> None:
    def broken() -> Iterator[np.ndarray]:
        yield from samples(16, count=3)[:, None]
        raise KeyError("planted")

    with pytest.raises(CalibrationError, match=r"samples\[3\]: .* raised KeyError: 'planted'"):
        compiled(product(), broken(), tmp_path)
    assert not (tmp_path / "out").exists()


def test_evaluate_is_called_with_both_models(tmp_path: Path) -> None:
    seen = []

    def evaluate(run: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> float:
        seen.append(run({"x": samples(16, count=5)})["y"])
        return float(len(seen))

    result = compiled(product(), samples(16), tmp_path, evaluate=evaluate)
    assert [result.manifest["results"][f"{which}_score"] for which in ("float", "compiled")] == [1.0, 2.0]
    assert [y.shape for y in seen] == [(5, 32), (5, 32)]
    assert 0 < np.abs(seen[0] - seen[1]).max() < 0.2


def test_labels_are_scored(small: Artifact, tmp_path: Path) -> None:
    x = samples(3, 8, 8, seed=3)
    labels = small.run({"x": x})["y"].argmax(-1)
    np.savez(tmp_path / "labels.npz", x=x, labels=labels)
    with quick():
        result = ptqc.resolve(
            small.folder, output=tmp_path / "out", budget="25%", labels=tmp_path / "labels.npz", cache=store_of(small)
        )
    assert result.manifest["results"]["compiled_score"] == 100.0
    assert 50 < result.manifest["results"]["float_score"] <= 100.0


def test_labels_do_not_change_the_model(small: Artifact, tmp_path: Path) -> None:
    result = compiled(
        residual(),
        samples(3, 8, 8),
        tmp_path,
        "25%",
        labels={"x": samples(3, 8, 8, seed=3), "labels": np.zeros(32, np.int64)},
        cache=store_of(small),
        activations="integer",
    )
    assert result.score is not None
    assert result.path.read_bytes() == small.path.read_bytes()


def test_an_unknown_option_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown option turbo; known: samples, observer, .*, seed"):
        compiled(product(), samples(16), tmp_path, turbo=True)


def test_calibration_data_are_needed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no calibration data: .*calibration=DATA.* synthetic"):
        ptqc.compile(product(), output=tmp_path / "out", budget="13%")


@pytest.mark.parametrize("pipeline", ["light", "advanced"])
def test_every_scale_of_the_file_is_a_power_of_two_where_that_is_asked_for(pipeline: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"bits": (3, 4), "activations": "integer", "pipeline": pipeline}
    result = compiled(product(), samples(16), tmp_path, scales="pow2", **options)
    arrays = [numpy_helper.to_array(each) for each in onnx.load(result.path).graph.initializer]
    floats = [array for array in arrays if array.dtype.kind == "f"]
    roots = [array.astype(float) for array in arrays if array.shape == (32,) and array.dtype == np.uint8]
    assert sum(array.size for array in (*floats, *roots)) > 32
    assert all((np.frexp(array)[0] == 0.5).all() for array in (*floats, *roots))
    ptqc.verify(result.folder)


def test_passes_are_dumped(tmp_path: Path) -> None:
    compiled(product(), samples(16), tmp_path, dump_passes=tmp_path / "dump" / "here")
    assert "fold-batch-norm" in " ".join(path.name for path in (tmp_path / "dump" / "here").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(("activations", "kernel"), [("integer", "QLinearConv"), ("float", "Conv"), ("auto", "Conv")])
def test_activations_choose_the_kernels(tmp_path: Path, activations: str, kernel: str) -> None:
    result = compiled(residual(), samples(3, 8, 8), tmp_path, "30%", activations=activations)
    operators = result.manifest["verification"]["operators"]
    convolutions = {name: count for name, count in operators.items() if "Conv" in name}
    assert sum(convolutions.values()) == 3
    assert all(kernel in name for name in convolutions)
    assert ("QLinearConv" in convolutions) is (activations == "integer")


EIGHT: dict[str, Any] = {"bits": (8,), "formats": ("int",), "allow_8bit": True}


@pytest.mark.processor
def test_eight_bit_weights_on_integer_kernels_are_marked(tmp_path: Path) -> None:
    result = compiled(product(), samples(16), tmp_path, activations="integer", **EIGHT)
    assert result.manifest["weights_by_format"] == {"int8": 512}
    assert result.manifest["cpu"]["saturates_without_vnni"] is True


def test_losses_from_gradients(of_array: Artifact, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'ptqc[torch]'")
    result = compiled(product(), samples(16), tmp_path, sensitivity="curvature").manifest
    assert result["options"]["sensitivity"] == "curvature"
    assert any(note["message"].startswith("losses are second-order estimates") for note in result["notes"])
    assert "sensitivity" not in of_array.manifest["options"]


def test_losses_from_gradients_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptqc.early_checks.find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"'curvature', which needs PyTorch: pip install 'ptqc\[torch\]'"):
        compiled(product(), samples(16), tmp_path, sensitivity="curvature")
