"""Every recipe still describes the network in the committed file; needs torch, which is no test dependency."""

import importlib
from pathlib import Path

import catalogue
import onnx
import pytest

pytest.importorskip("torch", reason="recipes need torch (pip install 'ptqc[models]')")


@pytest.mark.parametrize("entry", catalogue.networks().values(), ids=lambda entry: entry.name)
def test_recipe_exports_the_committed_graph(entry: catalogue.Network, tmp_path: Path) -> None:
    recipe = importlib.import_module(entry.name)
    path = tmp_path / entry.file
    recipe.EXPORT.write(recipe.Network(), path)
    fresh, committed = onnx.load(path).graph, onnx.load(entry.path).graph
    assert list(fresh.input) == list(committed.input)
    assert list(fresh.output) == list(committed.output)
    assert operators(fresh) == operators(committed)


def operators(graph: onnx.GraphProto) -> list[str]:
    # Equal weights (all ones before training) are stored once behind Identity.
    return [node.op_type for node in graph.node if node.op_type != "Identity"]
