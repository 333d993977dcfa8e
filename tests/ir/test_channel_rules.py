"""Every operator as ONNX's own node tests use it, between two layers: reordered, scaled, rotated it computes the same.

All inputs but the first become constants. Whether channels lie along the last axis or the second, in front and behind,
is tried in all combinations.
"""

import warnings
from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.test_case import TestCase as Case

from ptqc.execution.onnxruntime import Runner
from ptqc.execution.shapes import observed_shapes
from ptqc.ir.channel_rules import ORDERS
from ptqc.ir.channels import Shapes, find_ties
from ptqc.ir.rotation_rules import ROTATIONS
from ptqc.ir.scale_rules import SCALES
from ptqc.passes.base import Feeds, Probed, Rewrite
from ptqc.passes.equalize.reorder_channels import ReorderChannels, by_key
from ptqc.passes.equalize.rotate import Rotate, rotatable
from ptqc.passes.equalize.scale_channels import ScaleChannels

# Names of some of the cases in which channels are led on.
FAST = ("reduce_mean_default", "reduce_sum_empty", "slice_neg", "transpose_all", "prelu_", "split_equal", "concat_2d")
# Of the largest output. Operators without a limit on their slope magnify roundings.
TOLERANCE = 1e-3


def cases() -> Iterator[Case]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        yield from collect_testcases()


def layer(x: np.ndarray, is_last: bool, outputs: int, names: tuple[str, str, str]) -> tuple[onnx.NodeProto, np.ndarray]:
    """A layer along the last or the second axis, and its weight."""
    rng, count = np.random.default_rng(0), x.shape[-1 if is_last else 1]
    if is_last:
        return helper.make_node("MatMul", names[:2], names[2:]), rng.normal(size=(count, outputs)).astype(np.float32)
    weight = rng.normal(size=(outputs, count, *(1,) * (x.ndim - 2))).astype(np.float32)
    return helper.make_node("Conv", names[:2], names[2:]), weight


def between_layers(case: Case, is_last: tuple[bool, bool]) -> tuple[ir.Model, Feeds] | None:
    """The case between two layers, None where they do not fit."""
    (x, *others), (y, *_) = (case.data_sets or [])[0]
    if any(not isinstance(a, np.ndarray) or a.dtype != np.float32 for a in (x, y)):
        return None
    if any(a.ndim < 2 if last else a.ndim not in (3, 4, 5) for a, last in zip((x, y), is_last, strict=True)):
        return None
    proto = onnx.ModelProto()
    proto.CopyFrom(case.model)
    graph, (first, *rest) = proto.graph, [value.name for value in proto.graph.input]
    if not all(isinstance(a, np.ndarray) for a in others):
        return None
    front, made = layer(x, is_last[0], x.shape[-1 if is_last[0] else 1], ("given", "front", first))
    behind, read = layer(y, is_last[1], 3, (graph.output[0].name, "behind", "found"))
    constants = {**dict(zip(rest, others, strict=False)), "front": made, "behind": read}
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    graph.node.insert(0, front)
    graph.node.append(behind)
    del graph.input[:], graph.output[:]
    graph.input.append(helper.make_tensor_value_info("given", TensorProto.FLOAT, x.shape))
    shape = [*y.shape[:-1], 3] if is_last[1] else [y.shape[0], 3, *y.shape[2:]]
    graph.output.append(helper.make_tensor_value_info("found", TensorProto.FLOAT, shape))
    return ir.from_proto(proto), {"given": x}


def rewrites(model: ir.Model, shapes: Shapes) -> Iterator[Rewrite]:
    rng = np.random.default_rng(1)
    ties = find_ties(model, shapes, ORDERS)
    yield ReorderChannels(ties, by_key(ties, rng.permutation(len(ties.classes))))
    ties = find_ties(model, shapes, SCALES)
    yield ScaleChannels(ties, np.where(ties.fixed, 1.0, np.exp(rng.uniform(-1, 1, len(ties.classes)))))
    ties = find_ties(model, shapes, ROTATIONS)
    yield Rotate(ties, rotatable(ties, 2), 1)


def faults(case: Case) -> Iterator[str]:
    """What a rewrite of a case changes that it must not."""
    for is_last in ((True, True), (True, False), (False, True), (False, False)):
        try:
            value = between_layers(case, is_last)
            if value is None or not np.isfinite(before := Runner(value[0]).run(value[1])["found"]).all():
                continue
            shapes = observed_shapes(*value)
        except Exception:  # it does not run between layers; ONNX Runtime raises a dozen types of its own
            continue
        for step in rewrites(value[0], shapes):
            model = value[0].clone()
            step.apply(Probed(model))
            after = Runner(model).run(value[1])["found"]
            if np.abs(after - before).max(initial=0) > TOLERANCE * max(np.abs(before).max(initial=0), 1e-3):
                yield f"{case.name} {is_last}: {step.name}"


@pytest.mark.slow
def test_operators_that_lead_channels_on() -> None:
    chosen = [case for case in cases() if any(name in case.name for name in FAST)]
    assert len(chosen) > 20
    assert [fault for case in chosen for fault in faults(case)] == []


@pytest.mark.slow
def test_every_operator() -> None:
    assert [fault for case in cases() for fault in faults(case)] == []
