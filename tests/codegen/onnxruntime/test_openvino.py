"""OpenVINO unpacks the weights of files without functions as ONNX Runtime does, whatever their format.

Left out where OpenVINO is not installed: `pip install openvino`, which the extra `test` does, too.
"""

from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import compiled, residual
from graphs import noise, parse
from lowering import CONSTANTS, PALETTE, RESIDUAL, TABLE_CONSTANTS, TABLES, WORDS, Quantized, quantized, samples
from mostly_slow import mostly_slow

from ptqc.codegen.onnxruntime.export import export
from ptqc.execution.agreement import relative
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.formats import FLOAT16, Codebook, Format, Integer, Sparse, TwoOfFour, VectorCodebook

openvino = pytest.importorskip("openvino", reason="needs OpenVINO: pip install openvino")

# Codes differ by one here and there where both round what lies between two.
TOLERANCE = 0.02


def outputs(proto: onnx.ModelProto, feeds: Feeds) -> list[np.ndarray]:
    """What OpenVINO computes with real numbers in float32, whatever the processor multiplies faster."""
    model = openvino.Core().read_model(proto.SerializeToString())
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    result = openvino.Core().compile_model(model, "CPU", options)(feeds)
    return [np.array(result[place]) for place in range(len(proto.graph.output))]


def distance(proto: onnx.ModelProto, feeds: Feeds) -> float:
    """Of the outputs from ONNX Runtime's on the same file, relative to their size."""
    wanted, result = Runner(proto).run(feeds).values(), outputs(proto, feeds)
    return relative(wanted, result)


FORMS = (*map(Integer, (2, 3, 5, 7, 8)), Codebook(3), FLOAT16)


def inlined(network: Quantized) -> onnx.ModelProto:
    return export(network.lowered, network.model, inline=True).proto


@pytest.mark.parametrize("form", mostly_slow(FORMS, Integer(3), Integer(8), Codebook(3)), ids=str)
@pytest.mark.parametrize("is_float", [False, True], ids=["on integers", "in float"])
def test_a_residual_network(form: Format, is_float: bool) -> None:
    network = quantized(
        parse(RESIDUAL, **CONSTANTS),
        samples(2, 3, 8, 8),
        forms=form,
        keep_float=lambda _site: is_float or not form.has_codes,
    )
    assert distance(inlined(network), samples(2, 3, 8, 8)[0]) < TOLERANCE


@pytest.mark.parametrize(
    ("form", "side"),
    [(VectorCodebook(5), 20), (Sparse(2), 64), (TwoOfFour(4), 64), (Integer(5), 384), (VectorCodebook(7), 384)],
    ids=str,
)
def test_a_product(form: Format, side: int) -> None:
    """From 2^17 numbers on planes are close."""
    weight = noise(side, side)
    if form.keeps_zeros:
        weight[:, (np.arange(side) % 4) > 1] = 0
    model = parse(f"g (float[N, {side}] x) => (float[N, {side}] y) {{ y = Gemm<transB=1>(x, w) }}", w=weight)
    assert distance(inlined(quantized(model, samples(4, side), forms=form)), samples(4, side)[0]) < TOLERANCE


def test_tables() -> None:
    forms = {"embedding": Integer(3), "m": Integer(3), "h": Integer(3), "mask": PALETTE}
    network = quantized(parse(TABLES, **TABLE_CONSTANTS), WORDS, forms=forms, keep_float=lambda _site: True)
    assert distance(inlined(network), WORDS[0]) < TOLERANCE


@pytest.mark.slow
def test_a_compiled_file(tmp_path: Path) -> None:
    """With functions OpenVINO refuses it; without them it computes the same."""
    data = np.concatenate([feeds["x"] for feeds in samples(8, 3, 8, 8, count=4)])
    artifact = compiled(residual(), data, tmp_path, "24%", inline=True)
    assert distance(onnx.load(artifact.path), {"x": data[:4]}) < TOLERANCE
