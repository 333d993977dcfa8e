import numpy as np
import onnx_ir as ir
import pytest
from graphs import parse

from ptqc.ir import nodes

TWO = np.array([6, 7], np.float32)


def test_a_constant_of_one_element_is_a_number_whatever_its_rank() -> None:
    constants = {"six": np.array(6, np.float32), "listed": np.array([6], np.float32), "two": TWO}
    model = parse("g (float[N] x) => (float[N] y) { a = Sum(x, six, listed, two) y = Neg(a) }", **constants)
    x, *values = model.graph[0].inputs
    assert [nodes.scalar(value) for value in values] == [6, 6, None]
    assert nodes.scalar(x) is None
    assert nodes.scalar(None) is None


def test_only_consumer_is_none_for_outputs_and_shared_values() -> None:
    model = parse("g (int64[N] x) => (float[N] y) { a = Relu(x)  b = Neg(a)  y = Add(a, b) }")
    first, second, third = model.graph
    assert nodes.only_consumer(first.outputs[0]) is None
    assert nodes.only_consumer(second.outputs[0]) is third
    assert nodes.only_consumer(third.outputs[0]) is None


@pytest.mark.parametrize(
    ("first", "second", "known"),
    [(3, 3, True), (3, 4, False), ("N", "N", True), ("N", "M", False), (None, None, False)],
)
def test_of_open_sizes_nothing_is_known(first: int | str | None, second: int | str | None, known: bool) -> None:
    one, other = ir.Shape([first]), ir.Shape([second])
    assert nodes.same_size(one[0], other[0]) is known
