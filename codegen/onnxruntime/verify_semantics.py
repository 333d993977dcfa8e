"""What a plan asks of every operator, computed without the lowered graph, against what the written file gives.

Each operator of the float model gets the values that the file computed, codes dequantized by the plan, and the tuned
weight and bias; what it makes of them is what the file must have. Biases may be stored a little coarser than in whole
steps, so some codes differ by one, but none by more and not most of them: a wrong zero point shifts all. A tensor that
no integer kernel makes must also be rounded as the plan says.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import onnx_ir as ir

from ptqc.errors import VerificationError
from ptqc.execution.walk import Slicer
from ptqc.formats import coded
from ptqc.ir.integer_arithmetic import accumulator_scale, bits_for, dequantize, quantize, stored_bias, usable_scale
from ptqc.ir.layers import Layer
from ptqc.ir.operators import Trait, absorbs, clip_bounds, named
from ptqc.ir.plan import Plan
from ptqc.ir.quantized_weight import QuantizedParameters, QuantizedWeight

LARGEST_STEP = 1
LARGEST_SHARE = 0.5
ROUGH_STEP = 8
ROUGH_TOLERANCE = 0.03  # the same of kernels that round what they read
FLOAT_TOLERANCE = 2e-3  # of the output's largest magnitude, for operators whose output stays float

Values = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Intent:
    """A plan with its tuned numbers over the float model.

    rough: layers, by their output, whose kernel rounds what it reads to 8 bits.
    """

    model: ir.Model
    plan: Plan
    tuned: QuantizedParameters
    rough: frozenset[str] = frozenset()

    def rounded(self) -> list[str]:
        """The quantized tensors that float operators make, or that are inputs."""
        outputs = {kernel.output for kernel in self.plan.integer.values()}
        return [name for name in coded(self.plan.rounded) if name not in outputs]

    def floating(self) -> list[str]:
        """The tensors that the plan leaves as they are, in order of appearance."""
        values = [*self.model.graph.inputs, *(value for node in self.model.graph for value in node.outputs)]
        return [str(v.name) for v in values if v.name and v.name not in self.plan.params and _is_tensor(v)]

    def solution(self, place: str) -> QuantizedWeight:
        """The numbers of a weight, or of the weight of an integer layer as its bias allows them."""
        layer = self._layers.get(place)
        if layer is None:
            return self.tuned.weights[place]
        solution, bias = self.tuned.weights[layer.weight], self.tuned.biases.get(layer.name)
        return solution if bias is None else replace(solution, scale=self._scale(layer, bias))

    def check(self, values: Values, reals: Values) -> int:
        """Compare all; the number of operators. values: of quantized tensors their codes, else as they are; those that
        the file does not have are left out, and computed on the way. reals: `rounded` before they are rounded.

        Raises VerificationError.
        """
        for name, real in reals.items():
            self._compare("QuantizeLinear", name, real, values[name])
        slicer, checked, known = Slicer(self.model), set[str](), dict(values)
        for place, node in enumerate(self.model.graph):
            read = [name for name in slicer.reads[place] if not slicer.is_constant(name)]
            if (
                node.op_type not in named(Trait.RANDOM)
                and all(name in known for name in read)
                and any(map(_is_tensor, node.outputs))
            ):
                feeds = {name: self._real(name, known[name]) for name in read}
                known |= self._check_node(node, slicer, place, feeds, values)
                checked.add(str(node.outputs[0].name))
        if missing := [name for name in self.plan.integer if name not in checked]:
            raise VerificationError(f"the file has not all that the integer kernels {missing[:5]} read")
        return len(checked)

    def _real(self, name: str, value: np.ndarray) -> np.ndarray:
        params = self.plan.params.get(name)
        if params is not None:
            return dequantize(value, params)
        rounding = self.plan.rounded.get(name)
        return value if rounding is None else rounding.rounded(value)

    def _check_node(self, node: ir.Node, slicer: Slicer, place: int, feeds: Values, values: Values) -> Values:
        """One operator's outputs, or what the activation makes of it where that one is absorbed.

        Returns outputs that the file does not have.
        """
        outputs = [str(v.name) for v in node.outputs if v.name and _is_tensor(v)]
        activation, missing = absorbs(node), {}
        for name, wanted in self._wanted(slicer, place, feeds, outputs).items():
            if name in values:
                self._compare(node.op_type, name, wanted, values[name])
            elif activation is not None and (activated := str(activation.outputs[0].name)) in values:
                self._compare(node.op_type, activated, _activated(activation, wanted), values[activated])
            else:
                missing[name] = wanted
        return missing

    def _wanted(self, slicer: Slicer, place: int, feeds: Values, outputs: list[str]) -> dict[str, np.ndarray]:
        """The operator's float outputs."""
        layer = self._by_output.get(slicer.nodes[place].output[0])
        constants = {name: self.tuned.weights[name].weight for name in slicer.reads[place] & self._tables}
        if layer is not None:
            constants |= self._constants(layer)
        results = slicer.session([place], feeds, outputs, constants).run(None, dict(feeds))
        matches = dict(zip(outputs, results, strict=True))
        if layer is not None and layer.bias is None and (bias := self._bias(layer)) is not None:
            matches[layer.name] = matches[layer.name] + layer.over_output(bias)
        return matches

    @cached_property
    def _by_output(self) -> Mapping[str, Layer]:
        return {layer.name: layer for layer in self.plan.layers}

    @cached_property
    def _layers(self) -> Mapping[str, Layer]:
        """The layers on integer kernels."""
        return {name: layer for name, layer in self._by_output.items() if name in self.plan.integer}

    @cached_property
    def _tables(self) -> set[str]:
        return {w.table or w.name for w in self.plan.weights if w.table is not None or not w.layers}

    def _scale(self, layer: Layer, bias: np.ndarray) -> np.ndarray:
        return usable_scale(self.tuned.weights[layer.weight].scale, bias, self.plan.params[layer.input])

    def _bias(self, layer: Layer) -> np.ndarray | None:
        """The tuned bias; of a kernel as it is stored, in whole steps of the accumulator, which may be coarser."""
        bias = self.tuned.biases.get(layer.name)
        if bias is None or layer.name not in self._layers:
            return bias
        step = accumulator_scale(self.plan.params[layer.input], self._scale(layer, bias))
        form, y = self.tuned.weights[layer.weight].form, self.plan.params.get(layer.output)
        stored, unit = stored_bias(bias, bits_for(form, bias, y))
        return np.asarray(np.rint(stored * unit / step) * step, np.float32)

    def _constants(self, layer: Layer) -> dict[str, np.ndarray]:
        place, bias = layer.name if layer.name in self._layers else layer.weight, self._bias(layer)
        constants = {layer.weight: self.solution(place).weight}
        return constants if bias is None or layer.bias is None else {**constants, layer.bias: bias}

    def _compare(self, op_type: str, tensor: str, wanted: np.ndarray, result: np.ndarray) -> None:
        """wanted: real values; result: their codes, or values where the plan has no parameters for the tensor."""
        where, params = f"{op_type} {tensor}", self.plan.params.get(tensor)
        if params is None:
            distance = _distance(wanted, result)
            if not distance <= (ROUGH_TOLERANCE if tensor in self.rough else FLOAT_TOLERANCE):
                raise VerificationError(f"{where} differs from what the plan asks by {distance:.1%} of its size")
            return
        if wanted.shape != result.shape:
            raise VerificationError(f"{where} has the shape {result.shape}; the plan asks for {wanted.shape}")
        steps = np.abs(quantize(wanted, params).astype(int) - result)
        largest, share = int(steps.max(initial=0)), float(np.mean(steps > 0)) if steps.size else 0.0
        most = (ROUGH_STEP, 1.0) if tensor in self.rough else (LARGEST_STEP, LARGEST_SHARE)
        if largest > most[0] or share > most[1]:
            raise VerificationError(
                f"{where}: {share:.0%} of the codes differ from what the plan asks, by up to {largest}"
            )


def _is_tensor(value: ir.Value) -> bool:
    """Whether a value is known to hold numbers."""
    return isinstance(value.type, ir.TensorType) and value.dtype is not None and value.dtype != ir.DataType.STRING


def _distance(wanted: np.ndarray, result: np.ndarray) -> float:
    """Largest difference over the largest magnitude; infinite where shapes, whole numbers or NaN differ."""
    if wanted.shape != result.shape or wanted.dtype != result.dtype:
        return np.inf
    differ = (wanted != result) & ~((wanted != wanted) & (result != result))
    if not differ.any():
        return 0.0
    if wanted.dtype.kind != "f":
        return np.inf
    finite = np.abs(wanted[np.isfinite(wanted)].astype(np.float64))
    gap = np.abs(wanted[differ].astype(np.float64) - result[differ])
    return float(gap.max() / max(finite.max(initial=0.0), 1e-30))


def _activated(activation: ir.Node, values: np.ndarray) -> np.ndarray:
    """The output behind an activation that an operator absorbs."""
    bounds = clip_bounds(activation)
    return values if bounds is None else np.clip(values, *bounds)
