"""A fault in the reference of any operator is found: what ONNX Runtime gives is compared with every reference."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from compiling import Measured, measured_model, proto, samples, weight

from ptqc.codegen.onnxruntime.verify import compare, take
from ptqc.errors import VerificationError
from ptqc.ir import reference
from ptqc.ir.operators import OPERATORS, Trait, registry
from ptqc.ir.operators.base import LoweredStep, has_float_output
from ptqc.passes.allocate.state import QuantizedModel

pytestmark = pytest.mark.processor

# Every operator that has a reference, and every kernel of it: one that is added belongs in here.
NETWORK = """g (float[N,4,8,8] x) => (float[N,6] y, float[N,6] z) {
    a = Conv(x, w1, b1)
    s = Sigmoid(a)
    m = Mul(a, s)
    c = Conv(m, w2, b2)
    t = Add(c, m)
    i = Mish(t)
    j = Softplus(i)
    l = LeakyRelu<alpha=0.3>(j)
    p = AveragePool<kernel_shape=[2,2], strides=[2,2]>(l)
    g = GlobalAveragePool(p)
    f = Flatten(g)
    h = Gemm(f, w3, b3)
    k = MatMul(h, w4)
    y = Gemm(k, w5, b5)
    z = MatMul(k, w6)
}"""
WITH_REFERENCE = sorted(name for name, operator in OPERATORS.items() if operator.reference is not None)
# Operators, and whether their output stays float: then another kernel computes them.
COMPUTED = [(name, False) for name in WITH_REFERENCE]
COMPUTED += [(name, True) for name in WITH_REFERENCE if Trait.FLOAT_OUTPUT in OPERATORS[name].traits]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    weights = {"w1": weight(8, 4, 1, 1), "w2": weight(8, 8, 1, 1), "w3": weight(8, 7), "w4": weight(7, 5)}
    weights |= {"w5": weight(5, 6), "w6": weight(5, 6)}
    biases = {"b1": weight(8, seed=1), "b2": weight(8, seed=2), "b3": weight(7, seed=3), "b5": weight(6, seed=4)}
    model = proto(NETWORK, **weights, **biases)
    return measured_model(model, samples(4, 8, 8, count=16), tmp_path_factory.mktemp("every"), activations="integer")


@pytest.fixture(scope="module")
def fitted(measured: Measured) -> QuantizedModel:
    return measured.fit()


def test_the_network_has_every_operator_that_has_a_reference(fitted: QuantizedModel) -> None:
    result = {(step.node.op_type, has_float_output(step)) for step in reference.steps(fitted.lowered)}
    assert sorted(result) == sorted(COMPUTED)


def test_the_network_runs_every_kernel_that_is_named(fitted: QuantizedModel) -> None:
    kernels = set[str]().union(*(OPERATORS[name].kernels for name in WITH_REFERENCE))
    assert kernels <= set(take(fitted.exported.proto, {}).operators)


@pytest.mark.parametrize(("name", "is_float"), COMPUTED)
def test_a_fault_in_its_reference_is_found(
    name: str, is_float: bool, measured: Measured, fitted: QuantizedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Next to the right answer: a code further, or a thousandth of a real value."""
    right = OPERATORS[name].reference
    assert right is not None

    def wrong(step: LoweredStep, inputs: Sequence[np.ndarray]) -> Any:
        result = right(step, inputs)
        if has_float_output(step) != is_float:
            return result
        return tuple(map(_moved, result)) if isinstance(result, tuple) else _moved(result)

    values = (fitted.exported.proto, fitted.lowered, measured.feeds[:1], fitted.exported.renamed)
    compare(*values)
    monkeypatch.setitem(registry.OPERATORS, name, replace(OPERATORS[name], reference=wrong))  # type: ignore[arg-type]
    with pytest.raises(VerificationError, match=f"^{name} .* differ from the reference"):
        compare(*values)


def _moved(result: np.ndarray) -> np.ndarray:
    return result * np.float32(1.001) if result.dtype.kind == "f" else result ^ 1
