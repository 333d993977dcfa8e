"""A network with wide channels that do not change what it computes: factors of a norm, and their inverses behind it."""

import numpy as np
import onnx
from compiling import proto, samples, weight

CHANNELS, HIDDEN, ROWS, CLASSES = 64, 256, 64, 10
WIDE = (3, 17, 40)
WIDE_ROWS, MANY_ROWS = (5, 33), 256

NETWORK = f"""g (float[N, ROWS, {CHANNELS}] x) => (float[N, {CLASSES}] y) {{
    n1 = LayerNormalization(x, g1)
    h1 = MatMul(n1, up1)
    r1 = Relu(h1)
    d1 = MatMul(r1, down1)
    s1 = Add(x, d1)
    n2 = LayerNormalization(s1, g2)
    h2 = MatMul(n2, up2)
    r2 = Relu(h2)
    d2 = MatMul(r2, down2)
    s2 = Add(s1, d2)
    m = ReduceMean <keepdims = 0> (s2, rows)
    y = MatMul(m, head)
}}"""


def planted(factor: float, rows: int = ROWS) -> onnx.ModelProto:
    """Two blocks of a transformer without attention; channels WIDE behind the norms are so many times as wide."""
    gain = np.ones(CHANNELS, np.float32)
    gain[list(WIDE)] = factor
    constants = {
        "up1": weight(HIDDEN, CHANNELS, seed=1).T / gain[:, None],
        "up2": weight(HIDDEN, CHANNELS, seed=2).T / gain[:, None],
        "down1": weight(CHANNELS, HIDDEN, seed=3).T,
        "down2": weight(CHANNELS, HIDDEN, seed=4).T,
        "head": 3 * weight(CLASSES, CHANNELS, seed=5).T,
    }
    contiguous = {name: np.ascontiguousarray(array) for name, array in constants.items()}
    return proto(NETWORK.replace("ROWS", str(rows)), g1=gain, g2=gain, rows=np.array([1]), **contiguous)


# Norms in front of all that outputs follow from: wide tokens of the input say no more than others.
TOKENS = f"""g (float[N, {MANY_ROWS}, {CHANNELS}] x) => (float[N, {CLASSES}] y) {{
    h1 = MatMul(x, up1)
    r1 = Relu(h1)
    d1 = MatMul(r1, down1)
    n1 = LayerNormalization(d1, gain)
    h2 = MatMul(n1, up2)
    r2 = Relu(h2)
    d2 = MatMul(r2, down2)
    s2 = Add(n1, d2)
    m = ReduceMean <keepdims = 0> (s2, rows)
    y = MatMul(m, head)
}}"""


def tokens(channels: float = 1.0) -> onnx.ModelProto:
    """The same blocks one behind the other. Weights that read channels WIDE of the input are so much smaller."""
    gain = np.ones(CHANNELS, np.float32)
    gain[list(WIDE)] = channels
    drawn = {
        "up1": weight(HIDDEN, CHANNELS, seed=1) / gain,
        "up2": weight(HIDDEN, CHANNELS, seed=2),
        "down1": weight(CHANNELS, HIDDEN, seed=3),
        "down2": weight(CHANNELS, HIDDEN, seed=4),
        "head": 3 * weight(CLASSES, CHANNELS, seed=5),
    }
    contiguous = {name: np.ascontiguousarray(array.T) for name, array in drawn.items()}
    return proto(TOKENS, gain=np.ones(CHANNELS, np.float32), rows=np.array([1]), **contiguous)


def token_samples(factor: float, count: int = 32, channels: float = 1.0) -> np.ndarray:
    """Normal inputs in which rows WIDE_ROWS, and channels WIDE, are so many times as large."""
    result = samples(MANY_ROWS, CHANNELS, count=count)
    result[:, WIDE_ROWS] *= factor
    result[:, :, WIDE] *= channels
    return result
