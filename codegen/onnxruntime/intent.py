"""What a plan asks of every integer kernel, computed without the lowered graph, against what the written file gives.

A tensor that no kernel makes must be rounded as the plan says. Each kernel gets the codes that the file computed; the
float model's operator, on those codes dequantized by the plan and with the tuned weight and bias, then gives the
codes to expect. Biases may be stored a little coarser than in whole steps, so some codes differ by one, but none by
more and not most of them: a wrong zero point shifts all.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ptqc.biases import accumulator_scale, usable_scale
from ptqc.errors import VerificationError
from ptqc.execute.walk import Slicer
from ptqc.integer import dequantize, quantize
from ptqc.layers import Layer
from ptqc.operators import absorbs, clip_bounds
from ptqc.plan import Plan
from ptqc.sites import Kernel
from ptqc.solutions import Tuned

LARGEST_STEP = 1
LARGEST_SHARE = 0.5
FLOAT_TOLERANCE = 2e-3  # of the output's largest magnitude, for layers whose output stays float

Values = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Intent:
    """A plan with its tuned numbers over the float model."""

    model: ir.Model
    plan: Plan
    tuned: Tuned

    def rounded(self) -> list[str]:
        """The quantized tensors that float operators make, or that are inputs."""
        made = {kernel.output for kernel in self.plan.integer.values()}
        sites = [site for site in self.plan.sites if site.name in self.plan.activations]
        return [name for site in sites for name in site.sources if name not in made]

    def tensors(self) -> list[str]:
        """What `check` looks at as codes (as a float output where a kernel leaves it float)."""
        kernels = self.plan.integer.values()
        return sorted({*self.rounded(), *(name for kernel in kernels for name in (*kernel.inputs, kernel.output))})

    def check(self, values: Values, reals: Values) -> int:
        """Compare all; the number of kernels. values: `tensors`; reals: `rounded` before they are rounded.

        Raises VerificationError.
        """
        for name, real in reals.items():
            self._compare("QuantizeLinear", name, real, values[name])
        slicer = Slicer(self.model)
        places = {name: place for place, node in enumerate(slicer.nodes) for name in node.output}
        nodes = {str(node.outputs[0].name): node for node in self.model.graph}
        for kernel in self.plan.integer.values():
            wanted = self._wanted(kernel, slicer, places[kernel.node], values)
            if kernel.output != kernel.node:
                wanted = _activated(nodes[kernel.node], wanted)
            self._compare(kernel.op_type, kernel.output, wanted, values[kernel.output])
        return len(self.plan.integer)

    def _wanted(self, kernel: Kernel, slicer: Slicer, place: int, values: Values) -> np.ndarray:
        """The operator's float output on dequantized codes."""
        feeds = {name: dequantize(values[name], self.plan.params[name]) for name in kernel.inputs}
        layer = next((layer for layer in self.plan.layers if layer.name == kernel.node), None)
        constants = self._constants(layer) if layer is not None else {}
        found = slicer.session([place], feeds, [kernel.node], constants).run(None, feeds)[0]
        if layer is not None and layer.bias is None and (bias := self._bias(layer)) is not None:
            found = found + layer.over_output(bias)
        return np.asarray(found)

    def _scale(self, layer: Layer, bias: np.ndarray) -> np.ndarray:
        return usable_scale(self.tuned.weights[layer.weight].scale, bias, self.plan.params[layer.input])

    def _bias(self, layer: Layer) -> np.ndarray | None:
        """The tuned bias in whole steps of the accumulator, which few large weights make coarse."""
        bias = self.tuned.biases.get(layer.name)
        if bias is None:
            return None
        step = accumulator_scale(self.plan.params[layer.input], self._scale(layer, bias))
        return np.asarray(np.rint(bias / step) * step, np.float32)

    def _constants(self, layer: Layer) -> dict[str, np.ndarray]:
        solution, bias = self.tuned.weights[layer.weight], self._bias(layer)
        if bias is None:
            return {layer.weight: solution.weight}
        weight = replace(solution, scale=self._scale(layer, bias)).weight
        return {layer.weight: weight} if layer.bias is None else {layer.weight: weight, layer.bias: bias}

    def _compare(self, op_type: str, tensor: str, wanted: np.ndarray, found: np.ndarray) -> None:
        """wanted: real values; found: their codes, or real values where the plan has no parameters for the tensor."""
        where, params = f"{op_type} {tensor}", self.plan.params.get(tensor)
        if params is None:
            distance = float(np.abs(wanted - found).max(initial=0.0) / max(np.abs(wanted).max(initial=0.0), 1e-30))
            if not distance <= FLOAT_TOLERANCE:
                raise VerificationError(f"{where} differs from what the plan asks by {distance:.1%} of its size")
            return
        steps = np.abs(quantize(wanted, params).astype(int) - found)
        largest, share = int(steps.max(initial=0)), float(np.mean(steps > 0)) if steps.size else 0.0
        if largest > LARGEST_STEP or share > LARGEST_SHARE:
            raise VerificationError(
                f"{where}: {share:.0%} of the codes differ from what the plan asks, by up to {largest}"
            )


def _activated(node: ir.Node, values: np.ndarray) -> np.ndarray:
    """The output behind the activation that the kernel absorbs."""
    activation = absorbs(node)
    bounds = clip_bounds(activation) if activation is not None else None
    return values if bounds is None else np.clip(values, *bounds)
