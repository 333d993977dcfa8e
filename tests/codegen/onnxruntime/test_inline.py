"""The file without model-local functions computes the same bits, and its bytes are told as well as those with them."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import compiled, samples
from compiling import residual as network
from graphs import noise, parse
from kernels import run_optimized
from lowering import (
    CONSTANTS,
    PALETTE,
    RESIDUAL,
    SMALL,
    SUBGRAPH,
    TABLE_CONSTANTS,
    TABLES,
    WORDS,
    Quantized,
    quantized,
)
from lowering import samples as batches

import ptqc
from ptqc.artifact.folder import Artifact
from ptqc.codegen.onnxruntime.export import export
from ptqc.codegen.onnxruntime.unpack_functions import DOMAIN
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.formats import FLOAT16, Codebook, Format, Integer, VectorCodebook


def check(network: Quantized, feeds: Feeds) -> None:
    """The same outputs bit by bit as of the file with functions, from the same kernels of ONNX Runtime."""
    file = export(network.lowered, network.model, inline=True)
    onnx.checker.check_model(file.proto)
    assert not file.proto.functions
    assert {entry.domain for entry in file.proto.opset_import} == {""}
    assert DOMAIN not in {node.domain for node in file.proto.graph.node}
    result, wanted = Runner(file.proto).run(feeds), Runner(file.packed).run(feeds)
    assert all(np.array_equal(result[name], wanted[name]) for name in wanted)
    operators = [run_optimized(proto.SerializeToString(), feeds)[1] for proto in (file.proto, file.packed)]
    assert operators[0] == operators[1]


@pytest.mark.parametrize("form", [*map(Integer, range(2, 9)), Codebook(3), FLOAT16], ids=str)
@pytest.mark.parametrize("is_float", [False, True], ids=["on integers", "in float"])
def test_a_residual_network(form: Format, is_float: bool) -> None:
    network = quantized(
        parse(RESIDUAL, **CONSTANTS),
        batches(2, 3, 8, 8),
        forms=form,
        keep_float=lambda _site: is_float or not form.has_codes,
    )
    check(network, batches(2, 3, 8, 8)[0])


@pytest.mark.parametrize("form", [Integer(3), Integer(8), FLOAT16], ids=str)
def test_tables(form: Format) -> None:
    forms = {"embedding": form, "m": form, "h": form, "mask": PALETTE}
    check(quantized(parse(TABLES, **TABLE_CONSTANTS), WORDS, forms=forms, keep_float=lambda _site: True), WORDS[0])


def test_codes_of_pairs() -> None:
    model = parse("g (float[N, 20] x) => (float[N, 20] y) { y = MatMul(x, w) }", w=noise(20, 20))
    check(quantized(model, batches(4, 20), forms=VectorCodebook(5)), batches(4, 20)[0])


def test_subgraphs() -> None:
    feeds: Feeds = {**batches(2, 6, 8, 8)[0], "k": np.array(True)}
    check(quantized(parse(SUBGRAPH, **SMALL), [feeds], forms=Integer(4)), feeds)


def test_names_that_were_there_are_not_taken_again() -> None:
    network = quantized(parse(RESIDUAL, **CONSTANTS), batches(2, 3, 8, 8), forms=Integer(5))
    file = export(network.lowered, network.model, inline=True)
    outputs = [name for node in file.proto.graph.node for name in node.output]
    constants = [tensor.name for tensor in file.proto.graph.initializer]
    names = [*outputs, *constants, *(value.name for value in file.proto.graph.input)]
    assert len(names) == len(set(names))
    assert set(file.renamed.values()) <= set(names)
    contents = [(t.data_type, tuple(t.dims), t.raw_data) for t in file.proto.graph.initializer if len(t.raw_data) > 8]
    assert len(contents) == len(set(contents))


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return compiled(
        network(), samples(3, 8, 8), tmp_path_factory.mktemp("inline"), "24%", inline=True, activations="integer"
    )


@pytest.mark.long
def test_a_compile_keeps_its_budget_and_passes_its_checks(artifact: Artifact) -> None:
    proto = onnx.load(artifact.path)
    assert not proto.functions
    assert artifact.manifest["options"]["inline"] is True
    size, limit = artifact.path.stat().st_size, artifact.manifest["allocation"]["limit"]
    assert 0.95 * limit < size <= limit == int(0.24 * artifact.manifest["source"]["bytes"])
    assert artifact.manifest["file"]["bytes_told_to_solver"] == pytest.approx(size, rel=0.02)
    assert "6 integer kernels give what the reference gives" in ptqc.verify(artifact.folder).checks["kernels"]


@pytest.mark.slow
def test_another_budget_stays_inlined_unless_told_otherwise(artifact: Artifact, tmp_path: Path) -> None:
    cache = artifact.folder.parent / "cache"
    same = ptqc.resolve(artifact.folder, output=tmp_path / "same", budget="22%", cache=cache)
    other = ptqc.resolve(artifact.folder, output=tmp_path / "other", budget="22%", cache=cache, inline=False)
    assert not onnx.load(same.path).functions
    assert onnx.load(other.path).functions
    assert other.manifest["allocation"]["smallest_bytes"] < same.manifest["allocation"]["smallest_bytes"]
