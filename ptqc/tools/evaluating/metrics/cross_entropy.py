"""What each token costs: the negative logarithm of the probability that the model gave it before it came."""

from typing import ClassVar

import numpy as np

from ptqc.calibration.inputs import InputRole
from ptqc.tools.evaluating.metric import Case, Share


class CrossEntropy(Share):
    """The judged output has logits (1, positions, tokens), or logarithms of probabilities.

    Without labels each position is held to the token behind it, where both are no padding. A label has the token that
    is expected at each position; numbers below 0 do not count.
    """

    name: ClassVar[str] = "cross-entropy"
    title = "cross-entropy, nat/token"
    higher_is_better: ClassVar[bool] = False
    needs_labels: ClassVar[bool] = False

    @classmethod
    def of(cls, parameter: str) -> "CrossEntropy | None":
        """See `Metric`."""
        return None if parameter else cls()

    def measure(self, case: Case) -> tuple[float, ...]:
        """Nats and tokens."""
        wanted = _next_tokens(case) if case.label is None else case.whole("tokens")
        logits = case.answers[0]
        if logits.ndim != 3 or logits.shape[:2] != (1, wanted.size):
            raise case.refused(
                f"output {case.output!r} has shape {logits.shape}, expected (1, {wanted.size}, tokens); "
                "another one may be meant: give its name with --score-output"
            )
        rows = logits[0].astype(np.float64)
        if wanted.max(initial=0) >= rows.shape[1]:
            raise case.refused(f"token {wanted.max()} is expected, but the model knows {rows.shape[1]}")
        counted = wanted.reshape(-1) >= 0
        rows, tokens = rows[counted], wanted.reshape(-1)[counted]
        largest = rows.max(1, initial=-np.inf)
        total = largest + np.log(np.exp(rows - largest[:, np.newaxis]).sum(1))
        return float((total - rows[np.arange(len(tokens)), tokens]).sum()), float(len(tokens))


def _next_tokens(case: Case) -> np.ndarray:
    """The token behind each position, -1 where there is none, or padding."""
    tokens, mask = case.fed(InputRole.TOKENS), case.fed(InputRole.MASK)
    if tokens is None:
        raise case.refused("the model has no input of tokens, so labels have to say what is expected at each position")
    is_token = np.ones(tokens.size, bool) if mask is None else mask.reshape(-1)[-tokens.size :].astype(bool)
    behind = np.append(tokens.reshape(-1)[1:].astype(np.int64), -1)
    return np.where(is_token & np.append(is_token[1:], False), behind, -1)
