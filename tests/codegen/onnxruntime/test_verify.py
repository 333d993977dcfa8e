"""Verification lets a good file pass, and stops faults planted into the file and into the lowered graph."""

import errno
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from compiling import Measured, measure_residual, measured_model, samples, weight
from compiling import proto as parsed
from onnx import numpy_helper

from ptqc.codegen.onnxruntime.export import Exported, export
from ptqc.codegen.onnxruntime.verify import Verified, verify
from ptqc.codegen.onnxruntime.verify_semantics import Intent
from ptqc.errors import Interrupted, VerificationError
from ptqc.ir.lowered import Lowered
from ptqc.passes.allocate.state import QuantizedModel
from ptqc.utils import scratch

pytestmark = pytest.mark.processor


@pytest.fixture(scope="module")
def good(measured: Measured) -> QuantizedModel:
    return measured.fit(14_000)


def check(
    measured: Measured,
    good: QuantizedModel,
    exported: Exported | None = None,
    lowered: Lowered | None = None,
    limit: int | None = 14_000,
) -> Verified:
    intent = Intent(measured.model, good.plan, good.tuned)
    return verify(exported or good.exported, lowered or good.lowered, intent, measured.feeds, limit)


def test_a_good_file_passes(measured: Measured, good: QuantizedModel) -> None:
    result = check(measured, good)
    assert result.integer_nodes == result.kernels_as_planned == 6
    assert result.kernels_compared == 6
    assert result.operators_as_planned == 7
    assert result.weights_as_tuned == 4
    assert result.operators["QLinearConv"] == 3
    assert result.output_difference < 1e-3
    assert "load_seconds" not in result.to_json()


def test_a_file_over_the_budget_is_refused(measured: Measured, good: QuantizedModel) -> None:
    with pytest.raises(VerificationError, match="over the budget of 5,000"):
        check(measured, good, limit=5_000)


# Faults of the exporter: the file is not what was lowered


def _node(graph: onnx.GraphProto, op_type: str, number: int = 0) -> onnx.NodeProto:
    return [node for node in graph.node if node.op_type == op_type][number]


def _change(graph: onnx.GraphProto, node: onnx.NodeProto, index: int, how: Callable[[np.ndarray], np.ndarray]) -> None:
    """Give one node a changed copy of a constant that it reads."""
    tensor = next(t for t in graph.initializer if t.name == node.input[index])
    changed = how(numpy_helper.to_array(tensor).copy()).astype(numpy_helper.to_array(tensor).dtype)
    assert not np.array_equal(changed, numpy_helper.to_array(tensor))
    graph.initializer.append(numpy_helper.from_array(changed, f"{tensor.name}_changed"))
    node.input[index] = f"{tensor.name}_changed"


def _call(graph: onnx.GraphProto, number: int) -> onnx.NodeProto:
    """The call that unpacks the constants of a layer: planes, scale, bias, step of the input, factor."""
    return [node for node in graph.node if node.domain][number]


def _swap_pads(graph: onnx.GraphProto) -> None:
    node = _node(graph, "Conv", 1)
    pads = next(attribute for attribute in node.attribute if attribute.name == "pads")
    pads.ints[:] = [0, 0, 2, 2]


def _with_zero_point(graph: onnx.GraphProto) -> onnx.NodeProto:
    """The last QuantizeLinear whose zero point is not left out."""
    return next(n for n in reversed(graph.node) if n.op_type == "QuantizeLinear" and len(n.input) == 3)


EXPORT_FAULTS = {
    "zero point off by one": lambda g: _change(g, _with_zero_point(g), 2, lambda z: z + 1),
    "zero point of the input off by one": lambda g: _change(g, _node(g, "QuantizeLinear"), 2, lambda z: z - 1),
    "stale activation scale": lambda g: _change(g, _node(g, "DequantizeLinear", 1), 1, lambda s: s * 1.02),
    "bias dropped": lambda g: _change(g, _call(g, 1), -3, np.zeros_like),
    "one bias code off by one": lambda g: _change(g, _call(g, 0), -3, lambda b: b + (np.arange(b.size) == 0) * 200),
    "stale weight scale": lambda g: _change(g, _call(g, 0), -4, lambda s: s * 1.05),
    "permuted output channels": lambda g: _change(g, _call(g, 2), 0, lambda p: np.roll(p, p.size // 32)),
    "permuted scales": lambda g: _change(g, _call(g, 2), -5, lambda s: np.roll(s, 1)),
    "padding side swapped": _swap_pads,
}


@pytest.mark.parametrize("fault", EXPORT_FAULTS.values(), ids=[name.replace(" ", "-") for name in EXPORT_FAULTS])
def test_faults_of_the_exporter_are_found(
    measured: Measured, good: QuantizedModel, fault: Callable[[onnx.GraphProto], None]
) -> None:
    proto = onnx.ModelProto.FromString(good.exported.data)
    fault(proto.graph)
    with pytest.raises(VerificationError, match=r"not what was tuned|integers differ|what the plan asks|run in float"):
        check(measured, good, replace(good.exported, proto=proto), limit=None)


# Faults of lowering: file and lowered graph agree, and both are wrong


def _set(lowered: Lowered, name: str, how: Callable[[np.ndarray], np.ndarray]) -> None:
    value = lowered.model.graph.initializers[name]
    assert value.const_value is not None
    array = value.const_value.numpy()
    changed = how(array.copy()).astype(array.dtype)
    assert not np.array_equal(changed, array)
    value.const_value = ir.tensor(changed, name=name)


BOTH = ("QuantizeLinear", "DequantizeLinear")


def _parameter(
    lowered: Lowered, tensor: str, index: int, how: Callable[[np.ndarray], np.ndarray], where: tuple[str, ...] = BOTH
) -> None:
    """Change scale (1) or zero point (2) of a quantized tensor wherever it is quantized and dequantized."""
    graph = lowered.model.graph
    changed: dict[str, ir.Value] = {}
    for node in [n for n in graph if n.op_type in where]:
        codes = node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0]
        if codes is None or codes.name != lowered.codes[tensor]:
            continue
        old = node.inputs[index]
        assert old is not None
        assert old.const_value is not None
        assert old.dtype is not None
        if str(old.name) not in changed:
            array = old.const_value.numpy()
            name = f"{tensor}/changed/{index}"
            value = ir.Value(name=name, const_value=ir.tensor(np.asarray(how(array), array.dtype), name=name))
            value.dtype, value.shape = old.dtype, old.shape
            graph.register_initializer(value)
            changed[str(old.name)] = value
        node.replace_input_with(index, changed[str(old.name)])
    assert changed


def _lowered_pads(lowered: Lowered) -> None:
    node = [n for n in lowered.model.graph if n.op_type == "Conv"][1]
    node.attributes["pads"] = ir.AttrInt64s("pads", [0, 0, 2, 2])


def _drop(lowered: Lowered, layer: str) -> None:
    _set(lowered, f"{layer}/bias_codes", np.zeros_like)


LOWERING_FAULTS = {
    "zero point off by one": lambda x: _parameter(x, "br", 2, lambda z: z + 1),
    "zero point of the input off by one": lambda x: _parameter(x, "x", 2, lambda z: z - 1),
    "stale activation scale": lambda x: _parameter(x, "cr", 1, lambda s: s * 1.05),
    "bias dropped": lambda x: _drop(x, "b"),
    "bias of the last layer dropped": lambda x: _drop(x, "y"),
    "stale weight scale": lambda x: _set(x, "a/weight/scale", lambda s: s * 1.05),
    "permuted output channels": lambda x: _set(x, "w3/codes", lambda c: np.roll(c, 1, axis=0)),
    "permuted input channels": lambda x: _set(x, "w3/codes", lambda c: np.roll(c, 2, axis=1)),
    "flipped kernel": lambda x: _set(x, "w2/codes", lambda c: c[:, :, ::-1, ::-1]),
    "padding side swapped": _lowered_pads,
}


@pytest.mark.parametrize("fault", LOWERING_FAULTS.values(), ids=[name.replace(" ", "-") for name in LOWERING_FAULTS])
def test_faults_of_lowering_are_found(
    measured: Measured, good: QuantizedModel, fault: Callable[[Lowered], None]
) -> None:
    lowered = replace(good.lowered, model=good.lowered.model.clone())
    fault(lowered)
    with pytest.raises(VerificationError, match=r"not what was tuned|what the plan asks"):
        check(measured, good, export(lowered, measured.model), lowered, None)


def test_a_copied_graph_without_a_fault_passes(measured: Measured, good: QuantizedModel) -> None:
    lowered = replace(good.lowered, model=good.lowered.model.clone())
    assert check(measured, good, export(lowered, measured.model), lowered, None).kernels_as_planned == 6


# Models with names that look like what lowering calls the real value of a tensor
NAMESAKE = """g (float[N,8] x) => (float[N,8] r, float[N,8] y, float[N,8] z) {
    h = Gemm(x, w, b)
    r = Tanh(h)
    namesake = Neg(h)
    z = Abs(namesake)
    y = Gemm(r, v)
}"""


@pytest.fixture(scope="module", params=["r/float", "h/float"])
def namesake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    model = parsed(NAMESAKE, w=weight(8, 8), b=weight(8), v=weight(8, 8, seed=1))
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [request.param if name == "namesake" else name for name in names]
    folder = tmp_path_factory.mktemp("namesake")
    return measured_model(model, samples(8), folder, bits=(7,), activations="integer")


def test_a_quantized_output_is_compared_with_what_was_rounded(namesake: Measured) -> None:
    fitted = namesake.fit()
    assert fitted.lowered.mark == "//"
    assert "r" in fitted.plan.params
    assert check(namesake, fitted, limit=None).operators_as_planned == 5
    lowered = replace(fitted.lowered, model=fitted.lowered.model.clone())
    _parameter(lowered, "r", 2, lambda zero: zero + 2, where=("QuantizeLinear",))
    with pytest.raises(VerificationError, match="QuantizeLinear r: 100% of the codes differ"):
        check(namesake, fitted, export(lowered, namesake.model), lowered, None)


# Files that are not what they should be at all


def test_a_layer_that_runs_in_float_is_refused(measured: Measured, good: QuantizedModel) -> None:
    """The plan says integer, the file computes the second convolution from float values."""
    proto = onnx.ModelProto.FromString(good.exported.data)
    conv = _node(proto.graph, "Conv", 1)
    proto.graph.node.insert(
        list(proto.graph.node).index(conv), onnx.helper.make_node("Sin", [conv.input[0]], ["in_float"])
    )
    conv.input[0] = "in_float"
    with pytest.raises(VerificationError, match=r"1 of 6 planned integer nodes run in float, first b \(as "):
        check(measured, good, replace(good.exported, proto=proto))


def test_a_file_that_breaks_the_rules_is_refused(measured: Measured, good: QuantizedModel) -> None:
    proto = onnx.ModelProto.FromString(good.exported.data)
    del proto.graph.node[3]
    with pytest.raises(VerificationError, match="does not pass the ONNX checker"):
        check(measured, good, replace(good.exported, proto=proto))


def test_a_file_that_does_not_load_is_refused(measured: Measured, good: QuantizedModel) -> None:
    proto = onnx.ModelProto.FromString(good.exported.data)
    _node(proto.graph, "GlobalAveragePool").op_type = "LpPool"  # lacks its required kernel_shape
    with pytest.raises(VerificationError, match="ONNX"):
        check(measured, good, replace(good.exported, proto=proto))


def test_a_full_disk_is_no_fault_of_the_file(
    measured: Measured, good: QuantizedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    monkeypatch.setattr(scratch, "_is_full", lambda: True)
    with pytest.raises(Interrupted, match=r"No space left on device in .*, where temporary files are"):
        check(measured, good)


def test_another_output_shape_is_refused(measured: Measured, good: QuantizedModel) -> None:
    proto = onnx.ModelProto.FromString(good.exported.data)
    last = next(node for node in proto.graph.node if "y" in node.output)
    last.output[0] = "inner"
    proto.graph.initializer.append(numpy_helper.from_array(np.array([-1, 5]), "shape"))
    proto.graph.node.append(onnx.helper.make_node("Reshape", ["inner", "shape"], ["y"]))
    for axis, name in enumerate(("rows", "columns")):
        proto.graph.output[0].type.tensor_type.shape.dim[axis].dim_param = name
    renamed = {**good.exported.renamed, "y": "inner"}
    with pytest.raises(VerificationError, match=r"the file's interface \(y\) is not that"):
        check(measured, good, replace(good.exported, proto=proto, renamed=renamed))


def test_nan_outputs_are_refused(measured: Measured, good: QuantizedModel) -> None:
    proto = onnx.ModelProto.FromString(good.exported.data)
    last = next(node for node in proto.graph.node if "y" in node.output)
    last.output[0] = "inner"
    proto.graph.initializer.append(numpy_helper.from_array(np.array(np.nan, np.float32), "nan"))
    proto.graph.node.append(onnx.helper.make_node("Add", ["inner", "nan"], ["y"]))
    renamed = {**good.exported.renamed, "y": "inner"}
    with pytest.raises(VerificationError, match="differs from the unpacked graph by inf"):
        check(measured, good, replace(good.exported, proto=proto, renamed=renamed))


@pytest.mark.slow
def test_a_float_plan_has_no_kernels_to_compare(tmp_path: Path) -> None:
    measured = measure_residual(tmp_path, activations="float")
    fitted = measured.fit(14_000)
    result = check(measured, fitted)
    assert (result.integer_nodes, result.kernels_compared, result.kernels_as_planned) == (0, 0, 0)
    assert "QLinearConv" not in result.operators
