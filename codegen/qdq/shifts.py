"""Zero points of int8 activations moved into biases: x + c is rounded around 0 in place of x around a zero point.

The layer or function that makes x adds c, and the layers that read x take it away again, W (x + c) + (b − c Σ W) =
W x + b, if they pad nothing.
"""

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ptqc.codegen.onnxruntime.names import short_names
from ptqc.codegen.qdq.edits import set_nodes
from ptqc.codegen.qdq.rules import LAYERS, TO_CODES, QdqGraph
from ptqc.ir.protos import value_names

SPREADS = "ConvTranspose"  # each of its outputs has other taps


def shift_values(model: onnx.ModelProto) -> None:
    """Round around 0 all that is rounded around another zero point. Biases are real values."""
    shifts = _Shifts(model)
    for node in shifts.graph.conversions():
        scale, zero = (np.asarray(shifts.graph.array(name)) for name in node.input[1:])
        if zero.any():
            shift = np.asarray(zero * scale, np.float32)
            shifts.take_in(node, shift) if node.op_type == TO_CODES else shifts.take_out(node, shift)
            node.input[2] = shifts.constant(np.zeros_like(zero))
    set_nodes(model, [one for node in shifts.graph.nodes for one in (*shifts.sums_before(node), node)])


@dataclass
class _Shifts:
    """Changes to a model. sums: by the output of a node, those to insert in front of it. added: new constants."""

    model: onnx.ModelProto
    added: dict[str, np.ndarray] = field(default_factory=dict)
    sums: dict[str, list[onnx.NodeProto]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.graph = QdqGraph(self.model)
        self.fresh = short_names(1, frozenset(value_names(self.model.graph)))
        self.outputs = {value.name for value in self.model.graph.output}

    def take_in(self, rounding: onnx.NodeProto, shift: np.ndarray) -> None:
        """Add to what is rounded: to the bias of the layer that makes it for nothing else, or by a sum."""
        x = rounding.input[0]
        maker = self.graph.makers.get(x)
        is_alone = x not in self.outputs and len(self.graph.readers[x]) == 1
        if maker is None or not is_alone or not self._add_to_bias(maker, shift):
            self._sum_before(rounding, 0, shift)

    def take_out(self, real: onnx.NodeProto, shift: np.ndarray) -> None:
        """Take it away from what reads the codes."""
        weights = {node.output[0]: weight for node, _, weight in self.graph.layers() if node.op_type != SPREADS}
        for reader in self.graph.readers.get(real.output[0], ()):
            weight = weights.get(reader.output[0])
            is_padded = any(any(each.ints) for each in reader.attribute if each.name == "pads")
            if weight is None or is_padded or not self._add_to_bias(reader, -shift * self._sums_of(reader, weight)):
                for place in (place for place, name in enumerate(reader.input) if name == real.output[0]):
                    self._sum_before(reader, place, -shift)

    def sums_before(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """What is inserted in front of a node."""
        return self.sums.get(node.output[0], [])

    def constant(self, array: np.ndarray) -> str:
        """The name of a new constant."""
        name = next(self.fresh)
        self.model.graph.initializer.append(numpy_helper.from_array(array, name))
        self.added[name] = array
        return name

    def _sums_of(self, layer: onnx.NodeProto, weight: onnx.NodeProto) -> np.ndarray:
        """What the weights of each output add up to."""
        codes, scale = (np.asarray(self.graph.array(name)) for name in weight.input[:2])
        is_turned = any(each.name == "transB" and each.i for each in layer.attribute)
        rows = codes if is_turned or LAYERS[layer.op_type] == 0 else codes.T
        return np.asarray(rows.reshape(len(rows), -1).sum(axis=1, dtype=np.int64) * scale.astype(np.float64))

    def _add_to_bias(self, layer: onnx.NodeProto, values: np.ndarray) -> bool:
        """Whether the layer adds a bias, which is changed then."""
        name = layer.input[2] if layer.op_type in LAYERS and not layer.domain and len(layer.input) > 2 else ""
        bias = self.added.get(name, self.graph.array(name))
        if bias is None:
            return False
        layer.input[2] = self.constant(np.asarray(bias + values, np.float32))
        return True

    def _sum_before(self, node: onnx.NodeProto, place: int, shift: np.ndarray) -> None:
        shifted = next(self.fresh)
        added = helper.make_node("Add", [node.input[place], self.constant(shift)], [shifted])
        self.sums.setdefault(node.output[0], []).append(added)
        node.input[place] = shifted
