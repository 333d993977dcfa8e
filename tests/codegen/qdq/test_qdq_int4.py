"""Weights of up to 4 bits as INT4: the same numbers in half the bytes, and only where layers alone read them."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import compiled, residual
from compiling import samples as images
from graphs import parse
from lowering import CONSTANTS, RESIDUAL, quantized, samples
from onnx import TensorProto
from qdq_forms import both

from ptqc.codegen.qdq.int4 import with_int4
from ptqc.codegen.qdq.options import QdqOptions
from ptqc.codegen.qdq.rules import QdqGraph, violations
from ptqc.errors import TargetError, UsageError
from ptqc.execution.agreement import relative
from ptqc.execution.onnxruntime import Runner, session_options
from ptqc.formats import Integer


def test_narrow_weights_are_int4_and_mean_the_same() -> None:
    forms = {"point": Integer(4), "head": Integer(3)}
    before = both(quantized(parse(RESIDUAL, **CONSTANTS), samples(1, 3, 8, 8), forms=forms), samples(1, 3, 8, 8))[0]
    after = with_int4(before)
    onnx.checker.check_model(after, full_check=True)
    assert not violations(after, "qnn")
    graph, old = QdqGraph(after), QdqGraph(before)
    packed = {name for name, tensor in graph.constants.items() if tensor.data_type == TensorProto.INT4}
    weights = {weight.input[0] for _, _, weight in graph.layers()} & packed
    assert len(weights) == 2
    for name in weights:
        narrow, codes = (np.asarray(each.array(name), np.int8) for each in (graph, old))
        assert np.array_equal(narrow, codes)
        assert len(graph.constants[name].raw_data) == (np.asarray(old.array(name)).size + 1) // 2
    feeds, plain = samples(1, 3, 8, 8)[0], session_options(optimize=False)
    wanted, result = (Runner(model, options=plain).run(feeds)["y"] for model in (before, after))
    assert relative([wanted], [result]) < 1e-6


def test_a_model_without_narrow_weights_stays_as_it_is() -> None:
    model = both(quantized(parse(RESIDUAL, **CONSTANTS), samples(1, 3, 8, 8)), samples(1, 3, 8, 8))[0]
    assert with_int4(model) == model


@pytest.mark.slow
def test_it_runs_on_the_npu(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn", reason="needs pip install 'ptqc[qnn]'")
    more = {"bits": (4,), "formats": ("int",), "activations": "integer", "verify_in": "qnn"}
    whole, packed = (
        compiled(residual(), images(3, 8, 8), tmp_path / str(int4), None, target="qdq", int4=int4, **more)
        for int4 in (False, True)
    )
    sizes = [made.manifest["targets"]["qdq"]["bytes"] for made in (whole, packed)]
    assert sizes[1] < sizes[0]
    assert packed.manifest["targets"]["qdq"]["runtimes"]["qnn"]["placement"] == "4 of 4 layers on integers"


@pytest.mark.slow
def test_it_is_refused_where_another_runtime_has_its_own_form(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="leave --verify-in, --chips and --int4 out"):
        compiled(residual(), images(3, 8, 8), tmp_path, None, target="qdq", runtime="tensorrt", int4=True)
    with pytest.raises(UsageError, match="int4 is 'yes'; give true or false"):
        QdqOptions(int4="yes")  # type: ignore[arg-type]
