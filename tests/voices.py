"""A small voice of the shape of VITS, as Piper exports them: its durations and its sound begin with random numbers.

A text encoder, a predictor of durations from noise, a Range over frames that durations give their number, a flow, and a
decoder of transposed convolutions. All lengths are free.
"""

import numpy as np
import onnx
from compiling import proto

SYMBOLS, HIDDEN, LATENT = 32, 24, 8

VOICE = """g (int64[1,T] input, int64[1] input_lengths, float[3] scales) => (float[1,1,S] output) {
    noise_scale, length_scale, noise_w = Split<axis=0, num_outputs=3>(scales)
    e = Gather(table, input)
    x0 = Transpose<perm=[0,2,1]>(e)
    x1 = Conv<pads=[2,2]>(x0, enc1, enc1_bias)
    x2 = Relu(x1)
    x3 = Conv<pads=[2,2]>(x2, enc2, enc2_bias)
    x = Add(x0, x3)
    stats = Conv(x, project, project_bias)
    means, logs = Split<axis=1, num_outputs=2>(stats)

    size = Shape(x)
    time = Slice(size, two, three)
    sizes = Concat<axis=0>(one_two, time)
    zeros = ConstantOfShape(sizes)
    drawn_w = RandomNormalLike(zeros)
    noise_d = Mul(drawn_w, noise_w)
    d0 = Concat<axis=1>(x, noise_d)
    d1 = Conv<pads=[1,1]>(d0, dur1, dur1_bias)
    d2 = Relu(d1)
    log_w = Conv(d2, dur2, dur2_bias)
    w0 = Exp(log_w)
    w1 = Mul(w0, length_scale)
    w = Ceil(w1)

    ends = CumSum(w, axis)
    starts = Sub(ends, w)
    total0 = ReduceSum<keepdims=0>(w)
    total = Cast<to=7>(total0)
    frames0 = Range(zero, total, step)
    frames1 = Cast<to=1>(frames0)
    frames = Unsqueeze(frames1, frame_axes)
    after = GreaterOrEqual(frames, starts)
    before = Less(frames, ends)
    inside = And(after, before)
    path = Cast<to=1>(inside)
    means_t = Transpose<perm=[0,2,1]>(means)
    logs_t = Transpose<perm=[0,2,1]>(logs)
    m_t = MatMul(path, means_t)
    l_t = MatMul(path, logs_t)
    m = Transpose<perm=[0,2,1]>(m_t)
    l = Transpose<perm=[0,2,1]>(l_t)
    drawn = RandomNormalLike(m)
    spread = Exp(l)
    n0 = Mul(drawn, spread)
    n1 = Mul(n0, noise_scale)
    z = Add(m, n1)

    first, second = Split<axis=1, num_outputs=2>(z)
    f0 = Conv<pads=[2,2]>(first, flow1, flow1_bias)
    f1, f2 = Split<axis=1, num_outputs=2>(f0)
    f3 = Tanh(f1)
    f4 = Sigmoid(f2)
    f5 = Mul(f3, f4)
    f6 = Conv(f5, flow2, flow2_bias)
    moved = Sub(second, f6)
    latent = Concat<axis=1>(first, moved)

    u0 = Conv<pads=[3,3]>(latent, pre, pre_bias)
    u1 = LeakyRelu<alpha=0.1>(u0)
    u2 = ConvTranspose<kernel_shape=[8], strides=[4], pads=[2,2]>(u1, up1, up1_bias)
    u3 = LeakyRelu<alpha=0.1>(u2)
    u4 = Conv<pads=[3,3], dilations=[3]>(u3, res, res_bias)
    u5 = Add(u2, u4)
    u6 = LeakyRelu<alpha=0.1>(u5)
    u7 = ConvTranspose<kernel_shape=[8], strides=[4], pads=[2,2]>(u6, up2, up2_bias)
    u8 = LeakyRelu<alpha=0.1>(u7)
    u9 = Conv<pads=[3,3]>(u8, post)
    output = Tanh(u9)
}"""


def voice() -> onnx.ModelProto:
    """The voice, with weights that give each symbol two frames or so."""
    random = np.random.default_rng(5)

    def layer(*shape: int, gain: float = 1.0) -> np.ndarray:
        return (random.standard_normal(shape) * gain * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)

    def bias(size: int, mean: float = 0.0) -> np.ndarray:
        return (mean + 0.1 * random.standard_normal(size)).astype(np.float32)

    weights = {
        "table": random.standard_normal((SYMBOLS, HIDDEN)).astype(np.float32),
        "enc1": layer(2 * HIDDEN, HIDDEN, 5),
        "enc2": layer(HIDDEN, 2 * HIDDEN, 5, gain=0.5),
        "project": layer(2 * LATENT, HIDDEN, 1, gain=0.7),
        "dur1": layer(HIDDEN, HIDDEN + 2, 3),
        "dur2": layer(1, HIDDEN, 1, gain=0.3),
        "flow1": layer(HIDDEN, LATENT // 2, 5),
        "flow2": layer(LATENT // 2, HIDDEN // 2, 1),
        "pre": layer(48, LATENT, 7),
        "up1": layer(48, 32, 8, gain=0.7),
        "res": layer(32, 32, 3, gain=0.5),
        "up2": layer(32, 16, 8, gain=0.7),
        "post": layer(1, 16, 7, gain=0.3),
    }
    sizes = {"enc1": 2 * HIDDEN, "enc2": HIDDEN, "project": 2 * LATENT, "dur1": HIDDEN, "flow1": HIDDEN}
    sizes |= {"flow2": LATENT // 2, "pre": 48, "up1": 32, "res": 32, "up2": 16}
    biases = {f"{name}_bias": bias(size) for name, size in sizes.items()} | {"dur2_bias": bias(1, 0.2)}
    integers = {
        "one_two": np.array([1, 2]),
        "two": np.array([2]),
        "three": np.array([3]),
        "axis": np.array(2),
        "zero": np.array(0),
        "step": np.array(1),
        "frame_axes": np.array([0, 2]),
    }
    return proto(VOICE, 18, **weights, **biases, **integers)


def sentences(count: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Inputs of many lengths: symbols, their number, and the scales of noise, lengths and noise of durations."""
    random = np.random.default_rng(seed)
    lengths = random.integers(8, 24, count)
    return [
        {
            "input": random.integers(0, SYMBOLS, (1, length)),
            "input_lengths": np.array([length]),
            "scales": np.array([0.667, 1.0, 0.8], np.float32),
        }
        for length in lengths
    ]
