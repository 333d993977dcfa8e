"""Functions on vectors that the processors have no instruction for."""

from collections.abc import Sequence
from typing import Any

from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels.writing import fill, vector

LN2_HIGH, LN2_LOW, LOG2_E = 0.693359375, -2.12194440e-4, 1.44269504088896341
EXP_RANGE = (-87.3, 88.3)
# Cephes' expf: exp(r) = 1 + r + r² · polynomial(r) for |r| ≤ ln(2) / 2, to about one unit in the last place.
EXP_POLYNOMIAL = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
# Vectors of AVX-512, which scales by powers of two and estimates reciprocals to 14 bits.
WIDE, SCALE, RECIPROCAL = 16, "llvm.x86.avx512.mask.scalef.ps.512", "llvm.x86.avx512.rcp14.ps.512"
# 2^f for |f| ≤ ½, the highest power first: least largest relative error in float64, 8e-8.
POWER_POLYNOMIAL = (1.32763747e-3, 9.67551488e-3, 5.55071346e-2, 0.240221202, 0.693146944, 1.00000012)
SIGMOID_RANGE = 18.0
SIGMOID_P = (4.37031012579801e-11, 1.15627324459942e-07, 6.08574864600143e-05, 8.51377133304701e-03, 0.248287947061529)
SIGMOID_Q = (
    *(6.10247389755681e-13, 5.76102136993427e-09, 6.29106785017040e-06),
    *(1.70198817374094e-03, 1.16817656904453e-01, 9.93151921023180e-01),
)
# Norbert Juffa's erff: x + x · P(x²) up to the boundary, beyond 1 − exp(−|x| − |x| · Q(|x|)); about one unit.
ERF_BOUNDARY, ERF_LARGEST = 0.921875, 3.925
ERF_SMALL = (-5.99104969e-4, 4.99339588e-3, -2.67667342e-2, 1.12818025e-1, -3.76124859e-1, 1.28379151e-1)
ERF_LARGE = (
    *(1.72948930e-5, -3.83208680e-4, 3.88393435e-3, -2.42545605e-2),
    *(1.06777847e-1, 6.34846687e-1, 1.28717512e-1),
)


def exp(x: Any, lanes: int) -> Any:
    """e^x in float32; saturates at the ends of the range. NaN stays: the second operand is what is left of one."""

    def number(value: float) -> Any:
        return fill(T.float32(value), lanes)

    x = T.Bind(T.min(number(EXP_RANGE[1]), T.max(number(EXP_RANGE[0]), x)))
    power = T.Bind(T.nearbyint(x * number(LOG2_E)))
    remainder = T.Bind(x - power * number(LN2_HIGH) - power * number(LN2_LOW))
    total = _polynomial(EXP_POLYNOMIAL, remainder, lanes) * remainder * remainder + remainder + number(1.0)
    exponent = T.Cast(vector("int32", lanes), power) + fill(T.int32(127), lanes)
    return total * T.reinterpret(vector("float32", lanes), exponent * fill(T.int32(1 << 23), lanes))


def exp_of_differences(x: Any, lanes: int) -> Any:
    """e^x for x ≤ 0, to about 1e-7 of the largest, 1: by powers of two where the processor scales by them."""
    if lanes != WIDE:
        return exp(x, lanes)
    steps = T.Bind(T.max(fill(T.float32(EXP_RANGE[0]), WIDE), x) * fill(T.float32(LOG2_E), WIDE))
    power = T.Bind(T.nearbyint(steps))
    part = _polynomial(POWER_POLYNOMIAL, T.Bind(steps - power), WIDE)
    scaled = (part, power, fill(T.float32(0), WIDE), T.int16(-1), T.int32(4))  # all lanes, rounded as usual
    return T.call_llvm_pure_intrin(vector("float32", WIDE), SCALE, *scaled)


def sigmoid(x: Any, lanes: int) -> Any:
    """1 / (1 + e^−x) as ½ + x · P(x²) / Q(x²), the approximation that ONNX Runtime and Eigen compute."""
    if lanes == WIDE:
        return _wide_sigmoid(x)

    def number(value: float) -> Any:
        return fill(T.float32(value), lanes)

    x = T.Bind(T.min(T.max(x, number(-SIGMOID_RANGE)), number(SIGMOID_RANGE)))
    square = T.Bind(x * x)
    ratio = x * _polynomial(SIGMOID_P, square, lanes) / _polynomial(SIGMOID_Q, square, lanes) + number(0.5)
    return T.min(T.max(ratio, number(0.0)), number(1.0))


def _wide_sigmoid(x: Any) -> Any:
    """The same by powers of two and a reciprocal, one step of Newton's behind its estimate. NaN stays as in `exp`."""

    def number(value: float) -> Any:
        return fill(T.float32(value), WIDE)

    def call(name: str, *operands: Any) -> Any:
        return T.call_llvm_pure_intrin(vector("float32", WIDE), name, *operands)

    every, as_usual = T.int16(-1), T.int32(4)  # lanes, and the rounding of the processor
    steps = T.Bind(T.min(number(EXP_RANGE[1]), T.max(number(EXP_RANGE[0]), x)) * number(-LOG2_E))
    power = T.Bind(T.nearbyint(steps))
    part = _polynomial(POWER_POLYNOMIAL, T.Bind(steps - power), WIDE)
    below = T.Bind(call(SCALE, part, power, number(0), every, as_usual) + number(1))
    guess = T.Bind(call(RECIPROCAL, below, number(0), every))
    return guess * (number(2) - below * guess)


def erf(x: Any, lanes: int) -> Any:
    """The error function."""

    def number(value: float) -> Any:
        return fill(T.float32(value), lanes)

    magnitude = T.Bind(T.min(T.max(x, number(0) - x), number(ERF_LARGEST)))
    near = T.Bind(T.min(T.max(x, number(-ERF_BOUNDARY)), number(ERF_BOUNDARY)))
    small = near + near * _polynomial(ERF_SMALL, T.Bind(near * near), lanes)
    large = magnitude + magnitude * _polynomial(ERF_LARGE, magnitude, lanes)
    large = T.Bind(number(1) - exp(number(0) - large, lanes))
    signed = T.Select(x < number(0), number(0) - large, large)
    return T.Select(magnitude <= number(ERF_BOUNDARY), small, signed)


def _polynomial(coefficients: Sequence[float], x: Any, lanes: int) -> Any:
    """The highest power's coefficient comes first."""
    total = fill(T.float32(coefficients[0]), lanes)
    for coefficient in coefficients[1:]:
        total = total * x + fill(T.float32(coefficient), lanes)
    return total


def fma(a: Any, b: Any, c: Any, lanes: int, *, in_c: bool) -> Any:
    """a · b + c, rounded once."""
    if in_c:
        return T.call_pure_extern("float32", "fmaf", a, b, c)
    return T.call_llvm_pure_intrin(vector("float32", lanes), "llvm.fma", a, b, c)


def weighted(numbers: Any, left: Any, right: Any, lanes: int, *, in_c: bool) -> Any:
    """left · r_a + (right · r_b + rest), rounded after each multiplication; numbers: r_a, r_b and rest."""
    ratio_a, ratio_b, remainder = (fill(numbers[i], lanes) for i in range(3))
    return fma(left, ratio_a, fma(right, ratio_b, remainder, lanes, in_c=in_c), lanes, in_c=in_c)


def rounded_here(x: Any, lanes: int, *, in_c: bool) -> Any:
    """x, not contracted with what follows."""
    return x if in_c else T.call_llvm_pure_intrin(vector("float32", lanes), "llvm.arithmetic.fence", x)
