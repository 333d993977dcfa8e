"""What releases of ONNX Runtime make of a file: nothing is unpacked in a run, however large a weight is."""

import sys
from pathlib import Path

import compat
import large_weight
import pytest

from ptqc.passes.canonicalize import split_products


@pytest.mark.parametrize(
    ("rows", "width"),
    [(96, 64), pytest.param(large_weight.ROWS, large_weight.WIDTH, marks=pytest.mark.slow)],
)
def test_no_part_of_a_large_weight_is_unpacked_in_a_run(
    rows: int, width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_products, "LARGEST", min(split_products.LARGEST, rows * width - 1))
    result = compat.probe_afresh(sys.executable, large_weight.write(tmp_path, rows, width), large_weight.sample(width))
    assert (result["not_folded"], result["operators"]) == (0, {"Concat": 1, "Gemm": 2})
    assert result["outputs"]["y"].shape == (1, rows)
