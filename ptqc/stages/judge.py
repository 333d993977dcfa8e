"""How good the delivered file is: agreement with the float model, score where labels are given."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ptqc.calibration.samples import Samples
from ptqc.execute.onnxruntime import Feeds, Runner, tensors_of
from ptqc.loss import output_loss
from ptqc.progress import Progress

Evaluate = Callable[[Callable[[Feeds], dict[str, np.ndarray]]], float]

JUDGED_SAMPLES = 64
# Below these the summary warns loudly.
LOW_AGREEMENT = 0.9
LOW_SQNR = 15.0  # dB
LARGE_LOSS = 0.1  # of the outputs' variance: their mean, which SQNR counts, may hide it
BEST_SQNR = 300.0  # what equal outputs have


@dataclass(frozen=True)
class Judged:
    """Held-back agreement, and scores if there were labels."""

    samples: int
    loss: float
    loss_unit: str
    agreement: float | None  # share of predictions with the same top class
    sqnr: float  # dB, over all float outputs
    float_score: float | None = None
    compiled_score: float | None = None

    @property
    def is_low(self) -> bool:
        """Whether the user should be warned."""
        if self.agreement is not None:
            return self.agreement < LOW_AGREEMENT
        return self.sqnr < LOW_SQNR or self.loss > LARGE_LOSS


def judge(
    model: ir.Model, data: bytes, held_back: Samples, loss: str, evaluate: Evaluate | None, progress: Progress
) -> Judged:
    """Compare the packed file with the float model on held-back samples (and on the user's labels)."""
    real, packed = Runner(model), Runner(onnx.load_from_string(data))
    samples = held_back[:JUDGED_SAMPLES]
    with progress.stage("compare with float", len(samples)) as stage:
        pairs = []
        for feeds in samples:
            pairs.append((tensors_of(real.run(feeds)), tensors_of(packed.run(feeds))))
            stage.advance()
    measure = output_loss(model, [float_ for float_, _ in pairs], loss)
    agreement = None
    if measure.logits:
        name = measure.logits[0]
        agreement = float(
            np.mean(np.concatenate([np.ravel(a[name].argmax(-1) == b[name].argmax(-1)) for a, b in pairs]))
        )
    scores: tuple[float | None, float | None] = (None, None)
    if evaluate is not None:
        with progress.stage("score with labels", 2) as stage:
            scores = (evaluate(real.run), None)
            stage.advance("float")
            scores = (scores[0], evaluate(packed.run))
    return Judged(
        len(samples),
        measure.mean(*zip(*pairs, strict=True)),
        measure.unit,
        agreement,
        _sqnr(pairs),
        *scores,
    )


def _sqnr(pairs: Sequence[tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]]) -> float:
    """10 log10 of signal power over error power, over all float outputs."""
    signal = error = 0.0
    for real, packed in pairs:
        for name, value in real.items():
            if value.dtype.kind == "f":
                signal += float(np.square(value, dtype=np.float64).sum())
                error += float(np.square(value.astype(np.float64) - packed[name]).sum())
    return min(BEST_SQNR, 10 * float(np.log10(max(signal, 1e-30) / error))) if error else BEST_SQNR


def to_json(judged: Judged) -> dict[str, Any]:
    """For the manifest."""
    return {
        "held_back_samples": judged.samples,
        "loss": judged.loss,
        "loss_unit": judged.loss_unit,
        "top1_agreement": judged.agreement,
        "sqnr_db": judged.sqnr,
        "float_score": judged.float_score,
        "compiled_score": judged.compiled_score,
    }
