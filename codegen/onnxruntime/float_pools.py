"""Pools right behind the rounding of a real value take its largest values in float, rounded then: the same codes.

ONNX Runtime has a fast MaxPool on codes whose channels lie last, as its integer convolutions leave them. On others it
takes up to 48 times as long as in float. Rounding keeps the order of values, so both ways give the same codes:
QuantizeLinear(Max(MaxPool(real))). Max of one tensor is that tensor; without it ONNX Runtime would move the rounding
in front of the pool again.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx
from onnx import helper

from ptqc import reference
from ptqc.graph.protos import reads
from ptqc.lowered import Lowered
from ptqc.operators import data_inputs

PARTS = ("largest", "float")


def inside(output: str) -> list[str]:
    """Names of the real values in front of the codes that a pool gives."""
    return [f"{output}/{part}" for part in PARTS]


@dataclass(frozen=True)
class _Rounded:
    """What codes are made of: the name of a real value, and the names of its scale and zero point."""

    real: str
    params: tuple[str, ...]


def with_float_pools(lowered: Lowered, nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes of a lowered graph, with pools in float where ONNX Runtime is slow at their codes."""
    pools, codes = _found(lowered)
    kept = [part for node in nodes for part in _written(node, pools)]
    still_read = {name for node in kept for name in reads(node)}
    unread = codes - still_read - {str(value.name) for value in lowered.model.graph.outputs}
    return (node for node in kept if unread.isdisjoint(node.output))


def _found(lowered: Lowered) -> tuple[dict[str, _Rounded], set[str]]:
    """Codes that pools give -> the real values that they are to read; and codes that only pools may have read."""
    steps = {step.output: step for step in reference.steps(lowered)}
    channels_last, rounded = set[str](), dict[str, _Rounded]()
    pools, codes = dict[str, _Rounded](), set[str]()
    for node in lowered.model.graph:
        output, read = str(node.outputs[0].name), {str(value.name) for value in data_inputs(node)}
        if (step := steps.get(output)) is not None:
            if step.node.op_type == "Conv" or not channels_last.isdisjoint(step.inputs):
                channels_last.add(output)
        elif node.op_type == "QuantizeLinear":
            real, *params = (str(value.name) for value in node.inputs if value is not None)
            rounded[output] = _Rounded(real, tuple(params))
        elif node.op_type == "MaxPool" and read <= rounded.keys():
            (given,) = read
            pools[output] = rounded[given]
            rounded[output] = _Rounded(inside(output)[-1], rounded[given].params)
            if given not in pools:
                codes.add(given)
        elif node.op_type != "DequantizeLinear" and not channels_last.isdisjoint(read):
            channels_last.add(output)
    return pools, codes


def _written(node: onnx.NodeProto, pools: Mapping[str, _Rounded]) -> list[onnx.NodeProto]:
    pool = pools.get(node.output[0]) if node.op_type == "MaxPool" else None
    if pool is None:
        return [node]
    output, pooled = node.output[0], onnx.NodeProto()
    largest, real = inside(output)
    pooled.CopyFrom(node)
    pooled.input[0], pooled.output[0] = pool.real, largest
    return [
        pooled,
        helper.make_node("Max", [largest], [real]),
        helper.make_node("QuantizeLinear", [real, *pool.params], [output]),
    ]
