from graphs import parse

from ptqc import nodes


def test_only_consumer_is_none_for_outputs_and_shared_values() -> None:
    model = parse("g (float[N] x) => (float[N] y) { a = Relu(x)  b = Neg(a)  y = Add(a, b) }")
    first, second, third = model.graph
    assert nodes.only_consumer(first.outputs[0]) is None
    assert nodes.only_consumer(second.outputs[0]) is third
    assert nodes.only_consumer(third.outputs[0]) is None
