"""The decoder for measuring memory has the parts that it says, in every type."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import random_llama

from ptqc.execution.onnxruntime import Runner

TINY = random_llama.Shape(2, 64, 4, 2, 96, 100)


def test_it_has_as_many_parameters_as_it_says(tmp_path: Path) -> None:
    random_llama.write(TINY, tmp_path / "model.onnx")
    tensors = onnx.load(tmp_path / "model.onnx").graph.initializer
    matrices = [tensor for tensor in tensors if not tensor.name.startswith("constant")]
    assert sum(int(np.prod(tensor.dims)) for tensor in matrices) == TINY.parameters
    assert random_llama.SHAPES["1.1b"].parameters == 1_100_048_384 - 45 * 2048  # as published, without the norms' gains
    onnx.checker.check_model(tmp_path / "model.onnx")


@pytest.mark.parametrize("kind", random_llama.TYPES)
def test_logits_are_of_the_usual_size(kind: str, tmp_path: Path) -> None:
    random_llama.write(TINY, tmp_path / "model.onnx", kind)
    if kind == "bfloat16":  # ONNX Runtime computes nothing in it
        assert ir.load(tmp_path / "model.onnx").graph.initializers["head"].dtype == ir.DataType.BFLOAT16
        return
    logits = Runner(tmp_path / "model.onnx").run({"tokens": random_llama.samples(TINY, 2, 20)})["logits"]
    assert logits.shape == (2, 20, TINY.vocabulary)
    assert logits.dtype == np.float32
    assert 1 < logits.std() < 6


def test_no_place_sees_what_follows(tmp_path: Path) -> None:
    random_llama.write(TINY, tmp_path / "model.onnx")
    runner, tokens = Runner(tmp_path / "model.onnx"), random_llama.samples(TINY, 1, 12)
    whole, part = (runner.run({"tokens": value})["logits"] for value in (tokens, tokens[:, :5]))
    assert np.allclose(whole[:, :5], part, atol=1e-4)


def test_a_cache_changes_no_number(tmp_path: Path) -> None:
    whole, cached = tmp_path / "whole.onnx", tmp_path / "cached.onnx"
    random_llama.write(TINY, whole)
    random_llama.write(TINY, cached, cache=True)
    onnx.checker.check_model(cached)
    tokens, runner = random_llama.samples(TINY, 1, 12), Runner(cached)
    feeds = {**random_llama.step(TINY, 0), "tokens": tokens[:, :7]}
    first = runner.run(feeds)
    pasts = {f"past_{name}": first[f"present_{name}"] for name in random_llama.cache_names(TINY)}
    second = runner.run({**pasts, "tokens": tokens[:, 7:]})
    result = np.concatenate([first["logits"], second["logits"]], 1)
    assert np.allclose(result, Runner(whole).run({"tokens": tokens})["logits"], atol=1e-4)
    assert {name: array.shape[2] for name, array in random_llama.step(TINY, 5).items() if "past" in name} == (
        dict.fromkeys(pasts, 5)
    )
