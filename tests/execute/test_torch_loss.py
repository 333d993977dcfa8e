"""The torch loss is the NumPy one, with a gradient."""

import numpy as np
import pytest
from graphs import noise

from ptqc.loss import OutputLoss

torch = pytest.importorskip("torch", reason="torch is not installed")

from ptqc.execute.torch.loss import output_loss  # noqa: E402

LOGITS = noise(5, 7, scale=3)
PROBABILITIES = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
CASES = [
    (OutputLoss(("y",), frozenset(), {}), LOGITS),
    (OutputLoss(("y",), frozenset({"y"}), {}), PROBABILITIES),
    (OutputLoss((), frozenset(), {"y": np.linspace(1, 2, 4)}), noise(2, 4, 3, 3)),
    (OutputLoss((), frozenset(), {"y": np.linspace(1, 2, 6)}), noise(2, 5, 6)),
    (OutputLoss((), frozenset(), {"y": np.asarray(0.5)}), noise(9)),
]


@pytest.mark.parametrize(("loss", "reference"), CASES)
def test_value_and_gradient(loss: OutputLoss, reference: np.ndarray) -> None:
    quantized = (reference * np.float32(0.9) + np.float32(0.01)).astype(np.float32)
    tensor = torch.from_numpy(quantized.copy()).requires_grad_()
    found = output_loss(loss, {"y": torch.from_numpy(reference)}, {"y": tensor})
    assert found.item() == pytest.approx(loss({"y": reference}, {"y": quantized}), rel=1e-4)
    found.backward()
    step = noise(*reference.shape, seed=1, scale=1e-3) * np.abs(quantized)
    ahead, behind = (loss({"y": reference}, {"y": quantized.astype(float) + s * step}) for s in (1, -1))
    assert (tensor.grad.numpy() * step).sum() == pytest.approx((ahead - behind) / 2, rel=0.01, abs=1e-7)
