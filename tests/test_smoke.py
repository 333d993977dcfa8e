"""The fastest sign that a compile works: a tiny network, end to end."""

from pathlib import Path

import numpy as np
import pytest
from compiling import compiled, residual, samples

import ptqc


@pytest.mark.smoke
def test_a_tiny_network_compiles_and_runs(tmp_path: Path) -> None:
    x = samples(3, 8, 8)
    artifact = compiled(residual(), x, tmp_path, "20%")
    result = ptqc.load(artifact.folder).run({"x": x})["y"]
    assert artifact.path.stat().st_size <= 59_172 // 5
    assert result.shape == (32, 10)
    assert np.isfinite(result).all()
    assert artifact.manifest["results"]["top1_agreement"] > 0.5
