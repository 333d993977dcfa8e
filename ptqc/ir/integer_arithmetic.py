"""The one definition of the integers: for each integer operator, exactly which codes come out.

Both targets are held to these functions, which are what ONNX Runtime's kernels compute on x86 processors with AVX2.
Convolutions and products accumulate in int32 with the bias inside and requantize as
``clip(rint(float32(acc) · float32(s_x · s_w / s_y)) + z_y)``, and so does the global average pool with the factor
s_x / (s_y · n); softmax reads its powers from a table; Add, Mul and other average pools round once, after their zero
point was added; a pointwise function is a table of 256 codes. A product whose output stays float is
``float32(acc) · float32(s_x · s_w)``. All are exact but the sigmoid, which is known to SIGMOID_ERROR.
Inner products are computed with float64 matrix products, which are exact below 2^53.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ptqc.errors import PassError
from ptqc.formats import Format, QuantParams, scales

Codes = NDArray[np.integer]
Reals = NDArray[np.float32]
EVERY_CODE = np.arange(256, dtype=np.uint8)
# Largest error of ONNX Runtime's sigmoid, a quotient of polynomials in float32: it may take a value next to a half to
# either code.
SIGMOID_ERROR = 5e-7


def quantize(x: np.ndarray, params: QuantParams) -> Codes:
    """Codes of real values: clip(rint(x / scale) + zero_point), halves to even."""
    steps = params.steps(x)
    steps += np.float32(params.zero_point)
    return _saturate(steps, params)


def dequantize(codes: np.ndarray, params: QuantParams) -> Reals:
    """Real values of codes: (code − zero_point) · scale in float32."""
    steps = np.asarray(codes.astype(np.int32) - params.zero_point, np.float32)
    return np.asarray(steps * np.float32(params.scale))  # NumPy makes no array of what has no axes


def fake_quantize(x: np.ndarray, params: QuantParams) -> Reals:
    """dequantize(quantize(x))."""
    return params.rounded(x)


def multiplier(x: QuantParams, weight_scale: np.ndarray, y: QuantParams) -> Reals:
    """float32 requantization factor per output channel, in the order of operations that ONNX Runtime uses."""
    product = np.float32(x.scale) * np.asarray(weight_scale, np.float32)
    return np.asarray(product / np.float32(y.scale), np.float32)


def requantize(accumulator: np.ndarray, factor: np.ndarray, y: QuantParams) -> Codes:
    """Codes of an int32 accumulator; `factor` broadcasts against it."""
    return _saturate(np.rint(accumulator.astype(np.float32) * factor) + np.float32(y.zero_point), y)


def product(accumulator: np.ndarray, x: QuantParams, weight_scale: np.ndarray) -> Reals:
    """Real values of an int32 accumulator of products."""
    return accumulator.astype(np.float32) * (np.float32(x.scale) * np.asarray(weight_scale, np.float32))


def conv_accumulator(
    x: np.ndarray,
    zero_point: int,
    weight: np.ndarray,
    bias: np.ndarray | None,
    *,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> NDArray[np.int64]:
    """int accumulator of a convolution of any spatial rank; padding stands for real zero.

    x (N, C, *spatial) codes, weight (O, C/groups, *kernel) codes, bias (O) int32. pads: begins, then ends.
    """
    columns = im2col(
        x.astype(np.float64) - zero_point, weight.shape[2:], strides=strides, pads=pads, dilations=dilations
    )
    samples, channels, taps, *out = columns.shape
    columns = columns.reshape(samples, groups, channels // groups * taps, -1)
    kernels = weight.reshape(groups, weight.shape[0] // groups, -1).astype(np.float64)
    result = np.einsum("gok,ngkp->ngop", kernels, columns, optimize=True)
    result = np.rint(result.reshape(samples, weight.shape[0], *out)).astype(np.int64)
    return result if bias is None else np.asarray(result + bias.reshape(1, -1, *(1,) * len(out)), np.int64)


def im2col(
    x: np.ndarray,
    kernel: Sequence[int],
    *,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
) -> np.ndarray:
    """Windows of x (N, C, *spatial) padded with zeros, as a view (N, C, taps, *out) where possible."""
    rank = len(kernel)
    x = np.pad(x, [(0, 0), (0, 0), *((pads[i], pads[i + rank]) for i in range(rank))])
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(x, spans, axis=tuple(range(2, 2 + rank)))
    keep = (slice(None), slice(None), *(slice(None, None, s) for s in strides))
    windows = windows[keep + tuple(slice(None, None, d) for d in dilations)]
    order = (0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
    moved = windows.transpose(order)
    return moved.reshape(*moved.shape[:2], -1, *moved.shape[2 + rank :])


def matmul_accumulator(
    x: np.ndarray, zero_point: int, weight: np.ndarray, bias: np.ndarray | None
) -> NDArray[np.int64]:
    """int accumulator of x (..., K) codes times weight (K, N) codes plus bias (N)."""
    result = np.rint((x.astype(np.float64) - zero_point) @ weight.astype(np.float64)).astype(np.int64)
    return result if bias is None else result + bias


def add(a: np.ndarray, a_params: QuantParams, b: np.ndarray, b_params: QuantParams, y: QuantParams) -> Codes:
    """Codes of a + b.

    fma(a, r_a, fma(b, r_b, z_y − fma(r_a, z_a, r_b · z_b))) with r = s / s_y, everything in float32; of two operands of
    different shapes the one that repeats along the innermost axis counts as b.
    """
    if repeats_inside(a.shape, b.shape):
        a, a_params, b, b_params = b, b_params, a, a_params
    ratio_a, ratio_b, offset = add_numbers(a_params, b_params, y)
    return _saturate(np.rint(_fma(a, ratio_a, _fma(b, ratio_b, offset))), y)


def add_numbers(a: QuantParams, b: QuantParams, y: QuantParams) -> tuple[Reals, Reals, Reals]:
    """What `add` needs of its parameters: r_a, r_b and z_y − fma(r_a, z_a, r_b · z_b)."""
    ratio_a, ratio_b = (np.asarray(np.float32(p.scale) / np.float32(y.scale)) for p in (a, b))
    zero = _fma(np.asarray(a.zero_point), ratio_a, np.asarray(ratio_b * np.float32(b.zero_point)))
    return ratio_a, ratio_b, np.asarray(np.float32(y.zero_point) - zero)


def mul(a: np.ndarray, a_params: QuantParams, b: np.ndarray, b_params: QuantParams, y: QuantParams) -> Codes:
    """Codes of a · b: float32((a − z_a)(b − z_b)) · float32(s_a · s_b / s_y) + z_y."""
    product = (a.astype(np.int32) - a_params.zero_point) * (b.astype(np.int32) - b_params.zero_point)
    factor = multiplier(a_params, np.asarray(b_params.scale), y)
    return _saturate(np.rint(product.astype(np.float32) * factor + np.float32(y.zero_point)), y)


def global_average_pool(x: np.ndarray, x_params: QuantParams, y: QuantParams) -> Codes:
    """Codes of the mean over all spatial axes of x (N, C, *spatial), kept as size 1."""
    spatial = tuple(range(2, x.ndim))
    count = int(np.prod([x.shape[axis] for axis in spatial]))
    total = (x.astype(np.int64) - x_params.zero_point).sum(spatial, keepdims=True)
    return requantize(total, mean_factor(x_params, y, count), y)


def mean_factor(x: QuantParams, y: QuantParams, count: int) -> Reals:
    """float32 factor from a sum of `count` codes to codes of their mean."""
    return np.asarray(np.float32(x.scale) / (np.float32(y.scale) * np.float32(count)))


def average_pool(
    x: np.ndarray,
    x_params: QuantParams,
    y: QuantParams,
    *,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    ceil: bool,
    counts_pads: bool,
) -> Codes:
    """Codes of the means over windows of x (N, C, *spatial): clip(rint(float32 mean / s_y + z_y)).

    The real values of a window are added in order in float32. pads: begins, then ends. ceil: whether a last window may
    reach beyond them. counts_pads: whether a mean is over the window's size, instead of what is in it of x.

    A window that is all of x is computed as `global_average_pool`, as ONNX Runtime does.
    """
    rank = len(kernel)
    if tuple(kernel) == x.shape[2:] and not any(pads):
        return global_average_pool(x, x_params, y)
    sizes = [n + pads[i] + pads[i + rank] - k for i, (n, k) in enumerate(zip(x.shape[2:], kernel, strict=True))]
    out = [(-(-n // s) if ceil else n // s) + 1 for n, s in zip(sizes, strides, strict=True)]
    # No window starts behind the end.
    out = [n - (ceil and (n - 1) * strides[i] >= x.shape[2 + i] + pads[i]) for i, n in enumerate(out)]
    real, inside = dequantize(x, x_params), np.ones((1, 1, *x.shape[2:]), np.float32)
    total, count = (_window_sums(array, kernel, strides, pads[:rank], out) for array in (real, inside))
    mean = total / (np.float32(np.prod(kernel)) if counts_pads else count)
    return _saturate(np.rint(mean / np.float32(y.scale) + np.float32(y.zero_point)), y)


def _window_sums(
    x: np.ndarray, kernel: Sequence[int], strides: Sequence[int], before: Sequence[int], out: Sequence[int]
) -> np.ndarray:
    """Sums of x (N, C, *spatial) over windows, padded with 0, in the order of the taps."""
    ends = [(n - 1) * s + k for n, s, k in zip(out, strides, kernel, strict=True)]
    widths = [(b, max(0, end - b - n)) for b, end, n in zip(before, ends, x.shape[2:], strict=True)]
    padded = np.pad(x, [(0, 0), (0, 0), *widths])
    total = np.zeros((*x.shape[:2], *out), np.float32)
    for tap in np.ndindex(*kernel):
        places = (slice(t, t + (n - 1) * s + 1, s) for t, n, s in zip(tap, out, strides, strict=True))
        total += padded[:, :, *places]
    return total


def of_each_code(function: Callable[[np.ndarray], np.ndarray], x: QuantParams, y: QuantParams) -> Codes:
    """The table of a function of real values, in float64: what each of the 256 codes becomes."""
    return quantize(function(dequantize(EVERY_CODE, x).astype(np.float64)), y)


def leaky_relu(x: np.ndarray, x_params: QuantParams, y: QuantParams, alpha: float) -> Codes:
    """Codes of x, and of alpha · x where x is negative."""
    real = dequantize(x, x_params)
    return quantize(np.where(real >= 0, real, np.float32(alpha) * real), y)


def sigmoid(x: np.ndarray, x_params: QuantParams, y: QuantParams) -> tuple[Codes, Codes]:
    """The smallest and largest codes of 1 / (1 + exp(−x)) to within SIGMOID_ERROR."""
    with np.errstate(over="ignore"):
        exact = 1 / (1 + np.exp(-dequantize(x, x_params).astype(np.float64)))
    return quantize(exact - SIGMOID_ERROR, y), quantize(exact + SIGMOID_ERROR, y)


def softmax(x: np.ndarray, x_params: QuantParams, y: QuantParams, axis: int, *, in_float64: bool) -> Codes:
    """Codes of softmax: e(x) · ⌊1 / s_y⌋ / Σ e(x) + z_y, with e from a table and summed in order in float32.

    The table is read as if the largest code were 255. in_float64: whether product and quotient are, as since ONNX
    Runtime 1.32; before that a product beyond float32 counts as 0, as on x86 processors.
    """
    moved = np.moveaxis(x.astype(np.int64), axis, -1)
    values = softmax_table(x_params, moved.shape[-1])[moved + 255 - moved.max(-1, keepdims=True)]
    total = np.add.accumulate(values, axis=-1, dtype=np.float32)[..., -1:]
    with np.errstate(over="ignore"):
        products = (values.astype(np.float64) if in_float64 else values) * softmax_steps(y)
    steps = np.rint(np.where(np.isinf(products), np.float32(0), products) / total)
    return _saturate(np.moveaxis(np.asarray(steps + np.float32(y.zero_point), np.float32), -1, axis), y)


def softmax_table(x: QuantParams, length: int) -> Reals:
    """e to the power of each code, scaled so that a sum of `length` of them stays finite."""
    room = float(np.log(np.finfo(np.float32).max / np.float32(length))) - 5
    scale = float(np.float32(x.scale))
    return np.asarray(np.exp((np.arange(256) - 255 + max(0.0, room) / scale) * scale), np.float32)


def softmax_steps(y: QuantParams) -> np.float32:
    """Codes between zero and one, a whole number."""
    return np.float32(np.floor(np.float32(1) / np.float32(y.scale)))


def repeats_inside(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether shape a is broadcast along the innermost axis, of those that both have, that is not 1 in both.

    Without such an axis ONNX Runtime takes a for a single value; without any in b, if the last one of a is 1.
    """
    for i in range(1, min(len(a), len(b)) + 1):
        if max(a[-i], b[-i]) > 1:
            return a[-i] == 1
    return len(b) > 0 or len(a) == 0 or a[-1] == 1


def _fma(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> Reals:
    """x · y + z rounded once to float32; float64 holds the product exactly."""
    return np.asarray(np.asarray(x, np.float64) * np.asarray(y, np.float64) + np.asarray(z, np.float64), np.float32)


def _saturate(rounded: np.ndarray, params: QuantParams) -> Codes:
    """Codes of whole numbers, which are overwritten; of NaN the lowest, as in ONNX Runtime."""
    dtype = np.int8 if params.format.signed else np.uint8
    clipped = np.asarray(rounded)
    np.clip(clipped, params.format.low, params.format.high, out=clipped)
    if np.isnan(clipped.max(initial=params.format.low)):
        clipped[np.isnan(clipped)] = params.format.low
    return clipped.astype(dtype if params.format.bits <= 8 else np.uint16)


# Integer biases: int32 codes at the accumulator's scale s_x · s_w, from 8 or 16 bits of a step for the whole layer.
#
# b ≈ B · u with a power of two u, and a kernel adds rint(B u / (s_x s_w)). Channels whose weights are small have large
# codes; a step for all of them lets all fit few bits, and is what the output's own step is measured against.

# Leaves the accumulator the other half of int32; rounding at most doubles a bias.
INT32_REACH = 2**29
# Bits of biases, and up to how many bits of a weight the fewer are taken: rounding a bias then may do to the output
# what the output's own rounding does, which is little beside what rounding these weights does.
FEW, MANY = 8, 16
COARSE_WEIGHTS = 4.0


def accumulator_scale(x: QuantParams, weight_scale: np.ndarray) -> np.ndarray:
    """s_x · s_w per channel in float32."""
    return np.asarray(np.float32(x.scale) * weight_scale.astype(np.float32), np.float32)


def usable_scale(weight_scale: np.ndarray, bias: np.ndarray, x: QuantParams) -> np.ndarray:
    """Weight scales large enough for every bias to fit int32 (only channels whose weights hardly matter change)."""
    smallest = np.abs(bias) / (np.float32(x.scale) * INT32_REACH)
    return scales.raised(weight_scale, smallest.astype(np.float32))


def bits_for(form: Format, bias: np.ndarray, y: QuantParams | None) -> int:
    """Bits of the biases of a layer with weights of this format. y: of its output; None where that is float."""
    if y is None or form.bits_per_weight > COARSE_WEIGHTS:
        return MANY
    return FEW if stored_bias(bias, FEW)[1] <= y.scale else MANY


def bias_reach(form: Format, bias: np.ndarray, y: QuantParams | None) -> float:
    """Largest magnitude of a bias that takes no more bits than `bias`; infinite where that takes many."""
    if y is None or bits_for(form, bias, y) == MANY:
        return np.inf
    return float((2 ** (FEW - 1) - 1) * 2.0 ** np.floor(np.log2(y.scale)))


def stored_bias(bias: np.ndarray, bits: int) -> tuple[np.ndarray, np.float32]:
    """(B, u): the bias in the smallest steps with which all of it fits so many bits."""
    largest, reach = float(np.abs(bias).max(initial=0.0)), 2 ** (bits - 1) - 1
    unit = 2.0 ** np.ceil(np.log2(max(largest, 2.0**-100) / reach))
    return np.rint(bias.astype(np.float64) / unit).astype(np.int16), np.float32(unit)


def codes_of(stored: np.ndarray, unit: np.float32, scale: np.ndarray) -> np.ndarray:
    """int32 codes at `scale` of what is stored, as nodes of float32 compute them."""
    return np.rint(stored.astype(np.float32) * unit / scale.astype(np.float32)).astype(np.int32)


def bias_codes(bias: np.ndarray, scale: np.ndarray, bits: int) -> np.ndarray:
    """int32 codes at `scale` of a bias that is stored in so many bits. Raises PassError where they do not fit int32."""
    largest = float(np.abs(bias.astype(np.float64) / scale.astype(np.float64)).max(initial=0.0))
    if largest > 4 * INT32_REACH - 1:
        raise PassError(f"a bias of {largest:.3g} accumulator steps does not fit int32")
    return codes_of(*stored_bias(bias, bits), scale)


def recovered_bias(codes: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.float32] | None:
    """The fewest bits and their step that give these codes; None where codes are other than `bias_codes` makes them."""
    real = codes * scale.astype(np.float64)
    for bits, dtype in ((FEW, np.int8), (MANY, np.int16)):
        _, near = stored_bias(real, bits)
        for unit in (near, near * np.float32(2), near / np.float32(2)):  # codes are rounded, which may pass a power
            stored = np.clip(np.rint(real / unit), 1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1)
            if np.array_equal(codes_of(stored, unit, scale), codes):
                return stored.astype(dtype), unit
    return None
