"""A compile delivers the same bytes wherever its weights are solved."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import compiled, digests, product, proto, residual, samples, weight
from mostly_slow import mostly_slow

import ptqc
from ptqc.errors import UsageError


def gated() -> onnx.ModelProto:
    """Two layers that read the same, whose weights share their second moments."""
    graph = "g (float[N,16] x) => (float[N,32] y) { a = Gemm(x, w) b = Gemm(x, v) s = Sigmoid(a) y = Mul(s, b) }"
    return proto(graph, w=weight(16, 32), v=weight(16, 32, seed=1))


NETWORKS: Mapping[str, tuple[onnx.ModelProto, np.ndarray]] = {
    "product": (product(), samples(16)),
    "residual": (residual(), samples(3, 8, 8)),
    "gated": (gated(), samples(16)),
}
WAYS = ("threads 1", "threads 2", "processes 1", "processes 2")


def artifact_of(network: str, way: str, folder: Path) -> tuple[dict[str, str], set[str]]:
    """Digests of the files of an artifact, and the entries of the store. way: the executor and its workers."""
    executor, workers = way.split()
    model, data = NETWORKS[network]
    artifact = compiled(model, data, folder, bits=(2, 4, 7), executor=executor, workers=int(workers))
    return digests(artifact.folder), {path.name for path in (folder / "cache").iterdir()}


@pytest.fixture(scope="module")
def of_product(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], set[str]]:
    return artifact_of("product", WAYS[0], tmp_path_factory.mktemp("product"))


@pytest.mark.long
@pytest.mark.parametrize("way", mostly_slow(WAYS[1:], WAYS[-1]))
def test_a_product(tmp_path: Path, way: str, of_product: tuple[dict[str, str], set[str]]) -> None:
    assert artifact_of("product", way, tmp_path) == of_product


@pytest.mark.slow
def test_layers_that_share_their_moments(tmp_path: Path) -> None:
    expected = artifact_of("gated", WAYS[0], tmp_path / "expected")
    assert artifact_of("gated", WAYS[-1], tmp_path / "found") == expected


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS[1:])
def test_a_residual_network(tmp_path: Path, way: str) -> None:
    expected = artifact_of("residual", WAYS[0], tmp_path / "expected")
    assert artifact_of("residual", way, tmp_path / "found") == expected


def test_an_unknown_executor_is_refused_before_anything_else(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown executor dask; known: threads, processes, ray"):
        ptqc.compile("none.onnx", calibration=None, output=tmp_path / "out", executor="dask")
