"""Pools of codes whose channels do not lie last take their largest values in float, rounded then: the same codes.

ONNX Runtime has a fast MaxPool on codes whose channels lie last, as its integer convolutions leave them. On others it
takes up to 48 times as long as in float. Rounding keeps the order of values, so both ways give the same codes:
QuantizeLinear(Max(MaxPool(real))). The real values are those that are rounded to the codes; of codes that another
operator gives, as Clip, Concat and a Softmax between codes do, they are Max(DequantizeLinear(codes)). Max of one tensor
is that tensor; without it ONNX Runtime would move the rounding in front of the pool again, or the other one behind it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir
from onnx import helper

from ptqc.ir import reference
from ptqc.ir.lowered import Lowered
from ptqc.ir.operators import Trait, data_inputs, named
from ptqc.ir.operators.base import codes_of
from ptqc.ir.protos import reads

CONVERSIONS, SOFTMAXES = named(Trait.CONVERTS), named(Trait.SOFTMAX)
REAL = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)
PARTS = ("dequantized", "real", "most", "largest")


def inside(output: str) -> list[str]:
    """Names of the real values in front of the codes that a pool gives."""
    return [f"{output}/{part}" for part in PARTS]


@dataclass(frozen=True)
class _Pool:
    """real: the name of the values that it takes the largest of. params: names of the codes' scale and zero point.

    codes: that `real` is made of where nothing else has done so; else empty.
    """

    real: str
    params: tuple[str, ...]
    codes: str = ""


def with_float_pools(lowered: Lowered, nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes of a lowered graph, with pools in float where ONNX Runtime is slow at their codes."""
    result, indexed = _known_codes(lowered), _indexed(lowered)
    remaining = [part for node in nodes for part in _written(node, result.pools, indexed)]
    still_read = {name for node in remaining for name in reads(node)}
    unread = result.codes - still_read - {str(value.name) for value in lowered.model.graph.outputs}
    return (node for node in remaining if unread.isdisjoint(node.output))


@dataclass
class _KnownCodes:
    """What is known of codes, by name, after a walk through some nodes.

    pools: what those that are to run in float read. codes: those that only pools may have read. params: names of scale
    and zero point. reals: values that round to the codes.
    """

    pools: dict[str, _Pool] = field(default_factory=dict)
    codes: set[str] = field(default_factory=set)
    params: dict[str, tuple[str, ...]] = field(default_factory=dict)
    reals: dict[str, str] = field(default_factory=dict)
    channels_last: set[str] = field(default_factory=set)

    def round(self, output: str, inputs: Sequence[str], *, by_kernel: bool) -> None:
        """Codes that a QuantizeLinear gives, or the kernel that it is a part of."""
        real, *params = inputs
        self.params[output] = tuple(params)
        if not by_kernel:
            self.reals[output] = real

    def pool(self, output: str, operand: str) -> None:
        """A pool that is to run in float."""
        params = self.params[output] = self.params[operand]
        _, real, _, largest = inside(output)
        if operand in self.reals:
            self.pools[output] = _Pool(self.reals[operand], params)
            if operand not in self.pools:
                self.codes.add(operand)
        else:
            self.pools[output] = _Pool(real, params, operand)
            self.reals[operand] = real
        self.reals[output] = largest

    def move(self, output: str, read: Iterable[str]) -> None:
        """Codes that are those of another tensor, elsewhere or cut off."""
        known = [self.params[name] for name in read if name in self.params]
        if known:
            self.params[output] = known[0]


def _known_codes(lowered: Lowered) -> _KnownCodes:
    steps = {step.output: step for step in reference.steps(lowered)}
    result = _KnownCodes()
    for node in lowered.model.graph:
        output, read = str(node.outputs[0].name), [str(value.name) for value in data_inputs(node)]
        step = steps.get(output)
        if node.op_type == "QuantizeLinear":
            inputs = [str(value.name) for value in node.inputs if value is not None]
            result.round(output, inputs, by_kernel=step is not None or _is_softmax_of_codes(node.inputs[0]))
        if step is not None:
            if step.node.op_type == "Conv" or not result.channels_last.isdisjoint(step.inputs):
                result.channels_last.add(output)
        elif node.op_type in CONVERSIONS:
            continue
        elif not result.channels_last.isdisjoint(read):
            result.channels_last.add(output)
        elif node.op_type == "MaxPool" and read[0] in result.params:
            result.pool(output, read[0])
        elif node.outputs[0].dtype == ir.DataType.UINT8:
            result.move(output, read)
    return result


def _is_softmax_of_codes(value: ir.Value | None) -> bool:
    """Whether ONNX Runtime computes it on codes, together with the rounding behind it."""
    maker = value.producer() if value is not None else None
    return maker is not None and maker.op_type in SOFTMAXES and codes_of(maker.inputs[0]) is not None


def _indexed(lowered: Lowered) -> set[str]:
    """Real values of pools whose Indices are read, where there are codes that they may be rounded to."""
    graph, outputs = lowered.model.graph, set(lowered.model.graph.outputs)
    if all(node.op_type != "QuantizeLinear" for node in graph):
        return set()
    pools = [node for node in graph if node.op_type == "MaxPool" and len(node.outputs) == 2]
    read = [node for node in pools if node.outputs[1].uses() or node.outputs[1] in outputs]
    return {str(node.outputs[0].name) for node in read if node.outputs[0].dtype in REAL}


def _written(node: onnx.NodeProto, pools: Mapping[str, _Pool], indexed: Set[str]) -> list[onnx.NodeProto]:
    if node.op_type != "MaxPool":
        return [node]
    if node.output[0] in indexed:
        remaining, (_, _, most, _) = onnx.NodeProto(), inside(node.output[0])
        remaining.CopyFrom(node)
        remaining.output[0] = most
        return [remaining, helper.make_node("Max", [most], [node.output[0]])]
    pool = pools.get(node.output[0])
    if pool is None:
        return [node]
    output, pooled = node.output[0], onnx.NodeProto()
    dequantized, real, most, largest = inside(output)
    pooled.CopyFrom(node)
    pooled.input[0], pooled.output[0] = pool.real, most
    before = []
    if pool.codes:
        before = [
            helper.make_node("DequantizeLinear", [pool.codes, *pool.params], [dequantized]),
            helper.make_node("Max", [dequantized], [real]),
        ]
    return [
        *before,
        pooled,
        helper.make_node("Max", [most], [largest]),
        helper.make_node("QuantizeLinear", [largest, *pool.params], [output]),
    ]
