"""Each rule finds the fault that is planted for it, and names the node; a model without faults breaks none."""

from collections.abc import Callable, Iterable

import numpy as np
import onnx
import pytest
from graphs import parse
from lowering import CONSTANTS, RESIDUAL, quantized, samples
from onnx import TensorProto, helper, numpy_helper
from qdq_forms import both, symmetric_model

from ptqc.codegen.qdq.rules import RULES, QdqGraph, violations
from ptqc.codegen.qdq.symmetric import for_tensorrt, signed

Plant = Callable[[onnx.ModelProto], None]


USUAL, FORMS = ("onnxruntime", "openvino", "qnn"), {"tensorrt": for_tensorrt, "xdna": signed}


@pytest.fixture(scope="module")
def models() -> dict[str, onnx.ModelProto]:
    """A model in each form, by one of the runtimes that take it."""
    usual = both(quantized(parse(RESIDUAL, **CONSTANTS), samples(1, 3, 8, 8)), samples(1, 3, 8, 8))[0]
    return {"qnn": usual} | {name: form(symmetric_model()) for name, form in FORMS.items()}


def found(model: onnx.ModelProto, runtimes: Iterable[str]) -> dict[str, str]:
    """By rule, the node of its first violation."""
    several = [one for runtime in runtimes for one in violations(model, runtime)]
    return {one.rule: one.node for one in reversed(several)}


def form_of(rule: str) -> str:
    """The form of a model that a rule is for, by a runtime that takes it."""
    (runtimes,) = (one.runtimes for one in RULES if one.name == rule)
    return "qnn" if not runtimes.isdisjoint(USUAL) else min(runtimes & FORMS.keys())


def set_constant(model: onnx.ModelProto, name: str, array: np.ndarray | np.generic) -> str:
    """Add a constant; its name."""
    model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
    return name


def first(model: onnx.ModelProto, op_type: str) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.op_type == op_type)


def function(model: onnx.ModelProto) -> None:
    model.functions.append(
        helper.make_function("own", "f", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], model.opset_import)
    )


def free_axis(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"


def implied_zero(model: onnx.ModelProto) -> None:
    del first(model, "QuantizeLinear").input[2]


def vector(model: onnx.ModelProto) -> None:
    first(model, "QuantizeLinear").input[1] = set_constant(model, "vector", np.array([0.1], np.float32))


def computed(model: onnx.ModelProto) -> None:
    first(model, "QuantizeLinear").input[1] = model.graph.input[0].name


def retype(model: onnx.ModelProto, names: set[str], kind: type) -> None:
    """Give the conversions to and from these codes zero points of another type."""
    zero = set_constant(model, f"zero_{kind.__name__}", np.array(0, kind))
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear" and node.output[0] in names:
            node.input[2] = zero
        if node.op_type == "DequantizeLinear" and node.input[0] in names:
            node.input[2] = zero


def mixed(model: onnx.ModelProto) -> None:
    retype(model, {first(model, "QuantizeLinear").output[0]}, np.uint16)


def wide(model: onnx.ModelProto) -> None:
    retype(model, {node.output[0] for node in model.graph.node if node.op_type == "QuantizeLinear"}, np.int16)


def on_codes(model: onnx.ModelProto) -> None:
    real = next(node for node in QdqGraph(model).conversions() if node.op_type == "DequantizeLinear")
    reader = next(node for node in model.graph.node if real.output[0] in node.input)
    reader.input[list(reader.input).index(real.output[0])] = real.input[0]


def weight_of(model: onnx.ModelProto, op_type: str = "Conv") -> onnx.NodeProto:
    return next(weight for node, _, weight in QdqGraph(model).layers() if node.op_type == op_type)


def asymmetric(model: onnx.ModelProto) -> None:
    weight = weight_of(model)
    zeros = np.asarray(QdqGraph(model).array(weight.input[2]))
    weight.input[2] = set_constant(model, "zeros", zeros + np.int8(1))


def unsigned(model: onnx.ModelProto) -> None:
    weight = weight_of(model)
    for place in (0, 2):
        array = np.asarray(QdqGraph(model).array(weight.input[place]))
        weight.input[place] = set_constant(model, f"u{place}", array.astype(np.uint8))


def along_inputs(model: onnx.ModelProto) -> None:
    weight = weight_of(model)
    next(each for each in weight.attribute if each.name == "axis").i = 1


def float_bias(model: onnx.ModelProto) -> None:
    first(model, "Conv").input[2] = set_constant(model, "bias", np.zeros(4, np.float32))


def bias_of(model: onnx.ModelProto) -> onnx.NodeProto:
    graph = QdqGraph(model)
    return graph.makers[first(model, "Conv").input[2]]


def other_bias(model: onnx.ModelProto) -> None:
    bias = bias_of(model)
    for place in (0, 2):
        array = np.asarray(QdqGraph(model).array(bias.input[place]))
        bias.input[place] = set_constant(model, f"b{place}", array.astype(np.int16))


def other_bias_scale(model: onnx.ModelProto) -> None:
    bias = bias_of(model)
    bias.input[1] = set_constant(model, "steps", np.asarray(QdqGraph(model).array(bias.input[1])) * np.float32(1.01))


def open_layer(model: onnx.ModelProto) -> None:
    rounded = next(
        node for node in model.graph.node if node.op_type == "QuantizeLinear" and "Conv" in maker(model, node)
    )
    rounded.op_type, rounded.output[0] = "Identity", "unread"
    del rounded.input[1:]


def maker(model: onnx.ModelProto, node: onnx.NodeProto) -> str:
    """The operator that makes what a node reads."""
    made = QdqGraph(model).makers.get(node.input[0])
    return "" if made is None else made.op_type


def shared(model: onnx.ModelProto) -> None:
    codes = weight_of(model).input[0]
    other = [set_constant(model, "other/s", np.float32(3)), set_constant(model, "other/z", np.int8(0))]
    model.graph.node.append(helper.make_node("DequantizeLinear", [codes, *other], ["unread"]))


def float8(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(helper.make_tensor("f8", TensorProto.FLOAT8E4M3FN, [1], [1.0]))


def packed(model: onnx.ModelProto) -> None:
    weight = weight_of(model)
    codes = np.asarray(QdqGraph(model).array(weight.input[0]))
    model.graph.initializer.append(helper.make_tensor("i4", TensorProto.INT4, codes.shape, np.clip(codes, -8, 7)))
    weight.input[0] = "i4"


def negative(model: onnx.ModelProto) -> None:
    first(model, "QuantizeLinear").input[1] = set_constant(model, "negative", np.float32(-1.0))


def foreign(model: onnx.ModelProto) -> None:
    first(model, "Flatten").domain = "com.example"


def control(model: onnx.ModelProto) -> None:
    inner = helper.make_graph([], "inner", [], [])
    model.graph.node.append(helper.make_node("If", ["x"], ["z"], then_branch=inner, else_branch=inner))


def zero_point(model: onnx.ModelProto) -> None:
    first(model, "QuantizeLinear").input[2] = set_constant(model, "zero", np.int8(3))


def integer_bias(model: onnx.ModelProto) -> None:
    codes, scale = set_constant(model, "codes", np.zeros(4, np.int32)), set_constant(model, "steps", np.float32(1))
    model.graph.node.append(helper.make_node("DequantizeLinear", [codes, scale], ["unread"]))


def rounded(model: onnx.ModelProto, name: str) -> str:
    """A value, rounded to codes and back."""
    parameters = [set_constant(model, f"{name}/s", np.float32(0.1)), set_constant(model, f"{name}/z", np.int8(0))]
    model.graph.node.append(helper.make_node("QuantizeLinear", [name, *parameters], [f"{name}/c"]))
    model.graph.node.append(helper.make_node("DequantizeLinear", [f"{name}/c", *parameters], [f"{name}/r"]))
    return f"{name}/r"


def rounded_before_relu(model: onnx.ModelProto) -> None:
    relu = first(model, "Relu")
    relu.input[0] = rounded(model, relu.input[0])


def needless(model: onnx.ModelProto) -> None:
    pool = first(model, "MaxPool")
    pool.input[0] = rounded(model, pool.input[0])


def no_power(model: onnx.ModelProto) -> None:
    first(model, "QuantizeLinear").input[1] = set_constant(model, "three", np.float32(3.0))


PLANTED: dict[str, list[tuple[Plant, str]]] = {
    "no functions": [(function, "function f")],
    "fixed shapes": [(free_axis, "x")],
    "zero points written out": [(implied_zero, "QuantizeLinear")],
    "scalar parameters of activations": [(vector, "QuantizeLinear"), (computed, "QuantizeLinear")],
    "one type of activations for each node": [(mixed, "Conv")],
    "activations of 8 bits": [(wide, "QuantizeLinear")],
    "operators between DequantizeLinear and QuantizeLinear": [(on_codes, "Conv")],
    "zero points of weights are 0": [(asymmetric, "Conv")],
    "signed weights": [(unsigned, "Conv")],
    "scales of weights along the outputs": [(along_inputs, "Conv")],
    "int32 biases at the product of scales": [(float_bias, "Conv"), (other_bias, "Conv"), (other_bias_scale, "Conv")],
    "one scale for each constant": [(shared, "DequantizeLinear")],
    "outputs of layers rounded": [(open_layer, "Conv")],
    "no float8": [(float8, "f8")],
    "INT4 in matmuls alone": [(packed, "Conv")],
    "positive scales": [(negative, "QuantizeLinear")],
    "standard operators": [(foreign, "Flatten")],
    "no control flow": [(control, "If")],
    "int8 activations with zero points 0": [(zero_point, "QuantizeLinear")],
    "real biases": [(integer_bias, "DequantizeLinear")],
    "nothing rounded between a layer and its Relu": [(rounded_before_relu, "Relu")],
    "conversions at the inputs of layers and sums alone": [(needless, "QuantizeLinear")],
    "scales are powers of two": [(no_power, "QuantizeLinear")],
}


@pytest.mark.parametrize("form", ["qnn", *FORMS])
def test_a_model_without_faults_breaks_no_rule(models: dict[str, onnx.ModelProto], form: str) -> None:
    assert not found(models[form], USUAL if form == "qnn" else [form])


def test_a_fault_is_planted_for_every_rule() -> None:
    assert set(PLANTED) == {rule.name for rule in RULES}


@pytest.mark.parametrize(
    ("rule", "plant", "node"),
    [(rule, plant, node) for rule, several in PLANTED.items() for plant, node in several],
    ids=[plant.__name__ for several in PLANTED.values() for plant, _ in several],
)
def test_a_planted_fault_is_found(models: dict[str, onnx.ModelProto], rule: str, plant: Plant, node: str) -> None:
    faulty, form = onnx.ModelProto(), form_of(rule)
    faulty.CopyFrom(models[form])
    plant(faulty)
    broken = found(faulty, USUAL if form == "qnn" else [form])
    assert rule in broken
    assert broken[rule].startswith(node)
