"""models/cached_stories.py: the exported decoder's numbers, whichever way its texts are cut."""

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

sys.path += [str(Path(__file__).resolve().parent.parent / folder) for folder in ("examples", "models")]

import cached_stories
import generate

LENGTH, FIRST = 24, 10


@pytest.mark.shared_data
@pytest.mark.parametrize("capacity", [0, LENGTH])
def test_a_cache_changes_no_number(shared_data: Path, tmp_path: Path, capacity: int) -> None:
    exported = shared_data / "models" / "stories260K.onnx"
    onnx.save(cached_stories.build(onnx.load(exported), capacity), tmp_path / "cached.onnx")
    text = np.random.default_rng(0).integers(3, 500, LENGTH).tolist()
    wanted = generate.in_onnxruntime(exported, 1).run({"ids": np.array([text])})["logits"][0]
    decoder = generate.Decoder(generate.in_onnxruntime(tmp_path / "cached.onnx", 1))
    result = [decoder.read(text[:FIRST]), *(decoder.read([token]) for token in text[FIRST:])]
    assert np.abs(np.array(result) - wanted[FIRST - 1 :]).max() < 1e-4
