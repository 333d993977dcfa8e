"""Weights in files beside the model."""

from pathlib import Path

import numpy as np
import pytest
from linear_model import linear, refusal, write
from onnx import TensorProto

from ptqc import inspect
from ptqc.execution.onnxruntime import run
from ptqc.frontend import read_model


def external(folder: Path, **entries: object) -> Path:
    model = linear()
    tensor = model.graph.initializer[0]
    (folder / "w.bin").write_bytes(b"\0" * 16 + tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "w.bin", "offset": 16, "length": 32, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return write(folder / "m.onnx", model)


def test_refuses_a_location_that_is_no_text(tmp_path: Path) -> None:
    path = external(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"w.bin", b"w.b\xffn"))
    assert "at b'w.b\\xffn', which is not a path" in refusal(path)
    assert "which is not a path" in str(inspect(path))


def test_external_data_counts_in_size_and_digest(tmp_path: Path) -> None:
    path = external(tmp_path)
    source = read_model(path)
    assert source.size == path.stat().st_size + 48
    assert run(source.model, {"x": np.ones((1, 4), np.float32)})["y"].tolist() == [[12, 16]]
    (tmp_path / "w.bin").write_bytes(b"\1" * 48)
    assert read_model(path).digest != source.digest


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"location": "gone.bin"}, "missing"),
        ({"location": "x" * 300}, "missing"),
        ({"location": "/etc/passwd"}, "inside the model's folder"),
        ({"location": "C:\\w.bin"}, "inside the model's folder"),
        ({"location": "../w.bin"}, "inside the model's folder"),
        ({"location": ""}, "without a location"),
        ({"location": "link.bin"}, "leaves the model's folder"),
        ({"location": "inner"}, "not a regular file"),
        ({"offset": -4}, "offset '-4'"),
        ({"offset": "x"}, "offset 'x'"),
        ({"offset": 17}, "up to byte 49"),
        ({"length": 1 << 60}, "length"),
    ],
)
def test_refuses_bad_external_data(tmp_path: Path, entries: dict[str, object], message: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "inner").mkdir()
    (tmp_path / "outside.bin").write_bytes(b"\0" * 48)
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    assert message in refusal(external(folder, **entries))
