"""Operators that ONNX Runtime computes in float alone run on codes by a table in the file."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import Measured, compiled, measured_model, proto, samples, weight
from graphs import parse

import ptqc
from ptqc.codegen.onnxruntime.export import Exported, export
from ptqc.codegen.onnxruntime.lookup import lookups
from ptqc.codegen.onnxruntime.unpack import unpack
from ptqc.codegen.onnxruntime.verify import Verified, verify
from ptqc.codegen.onnxruntime.verify_semantics import Intent
from ptqc.errors import VerificationError
from ptqc.execution.onnxruntime import Runner
from ptqc.ir import integer_arithmetic as integer
from ptqc.ir.operators import EVERY, OPERATORS, registry
from ptqc.ir.operators.base import LoweredStep
from ptqc.passes.allocate.state import QuantizedModel

# A table behind a convolution, one that a Relu follows, and one of which a float operator reads the input, too.
NETWORK = """g (float[N,3,6,6] x) => (float[N,8] y, float[N,8,6,6] z) {
    a = Conv(x, w1, b1)
    b = Mish(a)
    c = Conv(b, w2, b2)
    d = Softplus(c)
    r = Relu(d)
    e = Conv(r, w3, b3)
    z = Sin(e)
    f = Mish(e)
    p = GlobalAveragePool(f)
    h = Flatten(p)
    y = Gemm(h, w4, b4)
}"""
TABLES = [one.name for one in EVERY if one.is_looked_up]


def network() -> onnx.ModelProto:
    shapes = {"w1": (8, 3, 1, 1), "w2": (8, 8, 1, 1), "w3": (8, 8, 1, 1), "w4": (8, 8)}
    weights = {name: weight(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    return proto(NETWORK, **weights, **{f"b{i}": weight(8, seed=i) for i in range(1, 5)})


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    folder = tmp_path_factory.mktemp("tables")
    return measured_model(network(), samples(3, 6, 6, count=24), folder, activations="integer", bits=(4, 7))


@pytest.fixture(scope="module")
def fitted(measured: Measured) -> QuantizedModel:
    return measured.fit()


def checked(measured: Measured, fitted: QuantizedModel, exported: Exported) -> Verified:
    intent = Intent(measured.model, fitted.plan, fitted.tuned)
    return verify(exported, fitted.lowered, intent, measured.feeds, None)


def test_they_are_planned_packed_and_verified(measured: Measured, fitted: QuantizedModel) -> None:
    result = checked(measured, fitted, fitted.exported)
    assert {"b", "d", "f"} <= fitted.plan.integer.keys()
    assert result.operators["GatherElements"] == 3
    assert result.kernels_compared == result.integer_nodes == len(fitted.plan.integer)
    # Sin reads real values, and nothing else does.
    assert result.operators["DequantizeLinear"] == 1


def test_another_batch_and_an_empty_one(fitted: QuantizedModel) -> None:
    runner = Runner(fitted.exported.proto)
    for rows in (0, 1, 5):
        assert runner.run({"x": samples(3, 6, 6, count=rows)})["y"].shape == (rows, 8)


def test_the_tables_of_a_delivered_file_are_found_and_compared(tmp_path: Path) -> None:
    artifact = compiled(network(), samples(3, 6, 6, count=24), tmp_path, activations="integer", bits=(4, 7))
    assert len(list(lookups(unpack(onnx.load(artifact.path)).model))) == 3
    assert "8 integer kernels give what the reference gives" in str(ptqc.verify(artifact.folder))


@pytest.mark.parametrize("far", [2, 40])
def test_a_wrong_table_is_found(
    far: int, measured: Measured, fitted: QuantizedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parity holds, since the file has the same table; what the float operator gives does not agree."""
    right = OPERATORS["Mish"].reference
    assert right is not None

    def wrong(step: LoweredStep, inputs: list[np.ndarray]) -> np.ndarray:
        result = np.asarray(right(step, inputs))
        return np.where(result < 255 - far, result + far, result).astype(np.uint8)

    monkeypatch.setitem(registry.OPERATORS, "Mish", replace(OPERATORS["Mish"], reference=wrong))  # type: ignore[arg-type]
    exported = export(fitted.lowered, measured.model)
    with pytest.raises(VerificationError, match=f"Mish b: .* differ from what the plan asks, by up to {far}"):
        checked(measured, fitted, exported)


def test_without_tables_they_compute_in_float(measured: Measured, fitted: QuantizedModel) -> None:
    operators = {node.op_type for node in export(fitted.lowered, measured.model, is_fast=False).proto.graph.node}
    assert {"Mish", "Softplus"} <= operators
    assert "GatherElements" not in operators


EXACT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Mish": lambda x: x * (1 - 2 / ((1 + np.exp(x)) ** 2 + 1)),
    "Softplus": lambda x: np.log1p(np.exp(x)),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(("scale", "zero_point"), [(0.05, 100), (0.01, 0), (0.2, 255)])
def test_a_table_is_the_function_rounded(name: str, scale: float, zero_point: int) -> None:
    graph = f"""g (uint8[N] c) => (uint8[N] y) {{
        r = DequantizeLinear(c, s, z)  f = {name}(r)  y = QuantizeLinear(f, t, w)
    }}"""
    _, node, _ = parse(graph, s=np.float32(scale), z=np.uint8(zero_point), t=np.float32(0.04), w=np.uint8(8)).graph
    reference = OPERATORS[name].reference
    assert reference is not None
    result = np.asarray(reference(LoweredStep(node, ("c",), "y", "f"), [integer.EVERY_CODE])).astype(int)
    exact = np.clip(EXACT[name](scale * (np.arange(256.0) - zero_point)) / 0.04 + 8, 0, 255)
    assert np.abs(result - exact).max() < 0.5 + 1e-4
