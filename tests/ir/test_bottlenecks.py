import pytest
from graphs import noise, parse

from ptqc.ir.layers import bottlenecks

CHAIN = "g (float[N, 4] x) => (float[N, 4] y) { a = MatMul(x, w) b = Relu(a) y = Exp(b) }"
BLOCK = "g (float[N, 4] x) => (float[N, 4] y) { a = Relu(x) b = MatMul(a, w) c = Relu(b) d = Add(a, c) y = Exp(d) }"
TWO_OUTPUTS = "g (float[N, 4] x) => (float[N, 4] y, float[N, 4] z) { a = Relu(x) y = MatMul(a, w) z = Exp(a) }"
UNREAD = "g (float[N, 4] x) => (float[N, 4] y) { a = MatMul(x, w) b = Relu(x) y = Exp(a) }"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CHAIN, ["a", "b", "y"]),
        (BLOCK, ["a", "d", "y"]),  # b and c are a branch beside a
        (TWO_OUTPUTS, ["a"]),
        (UNREAD, ["a", "y"]),  # x is alive until b, which nothing reads
    ],
)
def test_values_that_are_alone(text: str, expected: list[str]) -> None:
    result = list(dict.fromkeys(bottlenecks(parse(text, w=noise(4, 4)))))
    assert result == expected
