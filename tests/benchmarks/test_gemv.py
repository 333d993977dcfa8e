"""The product that the library is compared with computes what it says, and ratios are those of the times."""

import gemv
import numpy as np
import onnx
import onnxruntime as ort
import pytest


@pytest.mark.parametrize("block", gemv.BLOCKS)
def test_the_peer_multiplies_with_its_four_bit_weights(block: int) -> None:
    data, size = gemv.matmul_nbits(64, 256, block)
    packed, scale = (onnx.numpy_helper.to_array(t) for t in onnx.load_from_string(data).graph.initializer)
    assert size == packed.nbytes + scale.nbytes
    nibbles = np.stack([packed & 15, packed >> 4], -1).reshape(64, -1, block).astype(np.float64) - 8
    weights = (nibbles * scale.reshape(64, -1, 1)).reshape(64, 256)
    x = np.random.default_rng(2).standard_normal((1, 256)).astype(np.float32)
    (y,) = ort.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_allclose(y, x @ weights.T, atol=0.05 * np.abs(x @ weights.T).max())


def test_rows_tell_bytes_per_second_and_ratios() -> None:
    blocks = {gemv.NATIVE: [1.0, 2.0, 3.0], "other": [2.0, 4.0, 3.0], gemv.MEMORY: [10.0, 10.0, 10.0]}
    native, other, memory = gemv.compared(blocks, {"other": 3_000_000, gemv.MEMORY: 20_000_000}, 2_000_000)
    assert (native["microseconds"], native["gigabytes"], native["of_memory"]) == (2000, 1.0, 0.5)
    assert (other["native_of"], other["gigabytes"]) == (0.5, 1.0)
    assert memory["of_memory"] == 1
