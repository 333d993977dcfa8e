"""What the integer kernels of a lowered graph must give, computed by `ptqc.integer` from given input codes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ptqc import integer
from ptqc.formats import UINT8, QuantParams
from ptqc.graph.nodes import constant, integers, number
from ptqc.graph.nodes import integer as integer_attribute
from ptqc.lowered import Lowered
from ptqc.operators import FLOAT_OUTPUT, LAYERS

Values = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Step:
    """One kernel of a lowered graph: names of its input codes, and of its output: codes, or real values of the node."""

    node: ir.Node
    inputs: tuple[str, ...]
    output: str

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self.node.op_type} {self.output.removesuffix('codes').rstrip('/')}"


def steps(lowered: Lowered) -> Iterator[Step]:
    """The kernels that read codes and are defined by `ptqc.integer`, in execution order."""
    for node in lowered.model.graph:
        if node.op_type not in _KERNELS or (node.op_type in LAYERS and not has_codes(node, lowered)):
            continue
        data = node.inputs[:2] if node.op_type in ("Add", "Mul") else node.inputs[:1]
        inputs = [codes_of(value) for value in data]
        output = _quantized(node)
        if output is None and node.op_type in FLOAT_OUTPUT:
            output = str(node.outputs[0].name)
        if output is not None and all(name is not None for name in inputs):
            yield Step(node, tuple(str(name) for name in inputs), output)


def bounds(step: Step, values: Values) -> tuple[np.ndarray, np.ndarray]:
    """The least and the most that a kernel may give for input codes by name: the same, but for a sigmoid."""
    found = _KERNELS[step.node.op_type](step, [values[name] for name in step.inputs])
    return found if isinstance(found, tuple) else (found, found)


def has_codes(layer: ir.Node, lowered: Lowered) -> bool:
    """Whether a layer's weight or bias is codes: it computes on integers."""
    return any(value is not None and value.name in lowered.layer_constants for value in layer.inputs)


def codes_of(value: ir.Value | None) -> str | None:
    """Name of the activation codes behind a dequantized value."""
    producer = value.producer() if value is not None else None
    if producer is None or producer.op_type != "DequantizeLinear":
        return None
    codes = producer.inputs[0]
    return str(codes.name) if codes is not None and codes.dtype == ir.DataType.UINT8 else None


def _quantized(node: ir.Node) -> str | None:
    """Name of the codes that the node's output is rounded to, if that is all that happens to it."""
    consumers = node.outputs[0].consumers()
    if len(consumers) != 1 or consumers[0].op_type != "QuantizeLinear" or node.outputs[0].is_graph_output():
        return None
    return str(consumers[0].outputs[0].name)


def params_of(node: ir.Node) -> QuantParams:
    """Parameters of a QuantizeLinear or DequantizeLinear of an activation."""
    scale, zero = constant(node.inputs[1]), constant(node.inputs[2])
    assert scale is not None
    assert zero is not None
    return QuantParams(UINT8, float(scale), int(zero))


def input_params(step: Step, index: int = 0) -> QuantParams:
    """Parameters of a kernel's input codes."""
    producer = step.node.inputs[index].producer()  # type: ignore[union-attr]
    assert producer is not None
    return params_of(producer)


def has_float_output(step: Step) -> bool:
    """Whether a kernel gives real values."""
    return step.output == step.node.outputs[0].name


def output_params(step: Step) -> QuantParams:
    """Parameters of a kernel's output codes."""
    return params_of(step.node.outputs[0].consumers()[0])


def layer_constants(step: Step) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Weight codes, weight scales and bias codes of a layer."""
    weight = step.node.inputs[1].producer()  # type: ignore[union-attr]
    assert weight is not None
    codes, scale = constant(weight.inputs[0]), constant(weight.inputs[1])
    assert codes is not None
    assert scale is not None
    if len(step.node.inputs) < 3 or step.node.inputs[2] is None:
        return codes, scale, None
    bias = step.node.inputs[2].producer()
    assert bias is not None
    return codes, scale, constant(bias.inputs[0])


def _conv(step: Step, inputs: list[np.ndarray]) -> np.ndarray:
    codes, scale, bias = layer_constants(step)
    x, y = input_params(step), output_params(step)
    rank = codes.ndim - 2
    accumulator = integer.conv_accumulator(
        inputs[0],
        x.zero_point,
        codes,
        bias,
        strides=integers(step.node, "strides", [1] * rank),
        pads=integers(step.node, "pads", [0] * (2 * rank)),
        dilations=integers(step.node, "dilations", [1] * rank),
        groups=integer_attribute(step.node, "group", 1),
    )
    factor = integer.multiplier(x, scale, y).reshape(1, -1, *(1,) * rank)
    return integer.requantize(accumulator, factor, y)


def _product(step: Step, inputs: list[np.ndarray]) -> np.ndarray:
    codes, scale, bias = layer_constants(step)
    x = input_params(step)
    weight = codes.T if integer_attribute(step.node, "transB", 0) else codes
    accumulator = integer.matmul_accumulator(inputs[0], x.zero_point, weight, bias)
    if has_float_output(step):
        return integer.product(accumulator, x, scale)
    y = output_params(step)
    return integer.requantize(accumulator, integer.multiplier(x, scale, y), y)


def _add(step: Step, inputs: list[np.ndarray]) -> np.ndarray:
    return integer.add(inputs[0], input_params(step), inputs[1], input_params(step, 1), output_params(step))


def _mul(step: Step, inputs: list[np.ndarray]) -> np.ndarray:
    return integer.mul(inputs[0], input_params(step), inputs[1], input_params(step, 1), output_params(step))


def _mean(step: Step, inputs: list[np.ndarray]) -> np.ndarray:
    return integer.global_average_pool(inputs[0], input_params(step), output_params(step))


def _pool(step: Step, inputs: list[np.ndarray]) -> np.ndarray:
    kernel = integers(step.node, "kernel_shape", [])
    return integer.average_pool(
        inputs[0],
        input_params(step),
        output_params(step),
        kernel=kernel,
        strides=integers(step.node, "strides", [1] * len(kernel)),
        pads=integers(step.node, "pads", [0] * (2 * len(kernel))),
        ceil=bool(integer_attribute(step.node, "ceil_mode", 0)),
        counts_pads=bool(integer_attribute(step.node, "count_include_pad", 0)),
    )


def _leaky_relu(step: Step, inputs: list[np.ndarray]) -> np.ndarray:
    return integer.leaky_relu(inputs[0], input_params(step), output_params(step), number(step.node, "alpha", 0.01))


def _sigmoid(step: Step, inputs: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return integer.sigmoid(inputs[0], input_params(step), output_params(step))


_KERNELS: Mapping[str, Callable[[Step, list[np.ndarray]], np.ndarray | tuple[np.ndarray, np.ndarray]]] = {
    "Conv": _conv,
    "Gemm": _product,
    "MatMul": _product,
    "Add": _add,
    "Mul": _mul,
    "AveragePool": _pool,
    "GlobalAveragePool": _mean,
    "LeakyRelu": _leaky_relu,
    "Sigmoid": _sigmoid,
}
