"""Operators without kernels are told from the graph alone, before TVM is loaded for the rest."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from compiling import proto, weight

from ptqc.codegen.cpu.target import is_present
from ptqc.codegen.kernels import checks
from ptqc.codegen.kernels.checks import check_kernels
from ptqc.errors import NoKernel, TargetError
from ptqc.utils import sandbox


def known(monkeypatch: pytest.MonkeyPatch, *operators: str) -> None:
    monkeypatch.setattr(checks, "_known", lambda _target: {"Conv", "Gemm", "MatMul", "Add", "Relu", *operators})


def parse(graph: str, **constants: np.ndarray) -> ir.Model:
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto(graph, **constants)))


def test_an_operator_without_a_kernel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse("g (float[N,16] x) => (float[N,8] z) { y = Gemm(x, w) z = Det(y) }", w=weight(16, 8))
    known(monkeypatch)
    with pytest.raises(NoKernel, match=r"no kernel for Det z: the operator is not known to it$"):
        check_kernels(model, "cpu")
    known(monkeypatch, "Det")
    check_kernels(model, "cpu")


def test_what_gives_sizes_or_is_constant_needs_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch)
    graph = """g (float[N,16] x) => (float[N,16] y) {
        s = Shape(x) f = Cast<to=1>(s) n = ReduceProd<keepdims=0>(f) c = Sin(w) y = Add(x, c)
    }"""
    check_kernels(parse(graph, w=weight(1, 16)), "cpu")


@pytest.mark.slow
@pytest.mark.skipif(not is_present(), reason="needs TVM")
def test_the_kernels_of_the_library_are_known() -> None:
    result = checks._known("cpu")
    assert {"Conv", "Softmax", "GlobalAveragePool", "Resize", "Erf"} <= result
    assert not {"Det", "NonMaxSuppression", "TfIdfVectorizer"} & result


def test_a_process_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "run", lambda *_: sandbox.Ended("crashed", ""))
    with pytest.raises(TargetError, match="TVM crashed"):
        checks._known("cpu")
