from pathlib import Path

import file_bytes
from graphs import parse
from lowering import CONSTANTS, RESIDUAL, quantized, samples

from ptqc.codegen.onnxruntime.export import export
from ptqc.formats import Integer


def test_every_byte_is_of_one_kind(tmp_path: Path) -> None:
    network = quantized(parse(RESIDUAL, **CONSTANTS), samples(2, 3, 8, 8), forms=Integer(3))
    path = tmp_path / "model.onnx"
    path.write_bytes(export(network.lowered, network.model).data)
    row = file_bytes.row(path)
    assert sum(row[kind] for kind in file_bytes.KINDS) == row["bytes"] == path.stat().st_size
    weights = sum(codes.size for codes in (network.tuned.weights[name].codes for name in network.tuned.weights))
    assert 0 < row["indices"] - weights * 3 / 8 < 40 * len(network.tuned.weights)
    assert 0 < row["rest"] < 200
    assert all(row[kind] > 0 for kind in ("scales", "biases", "functions"))
