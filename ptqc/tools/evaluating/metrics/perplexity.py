"""How many tokens, all alike, the model hesitates between: e to the cross-entropy."""

from typing import ClassVar

import numpy as np

from ptqc.tools.evaluating.metrics.cross_entropy import CrossEntropy


class Perplexity(CrossEntropy):
    """See `CrossEntropy`."""

    name: ClassVar[str] = "perplexity"
    title = "perplexity"

    def score(self, measured: np.ndarray) -> float:
        """See `Metric`."""
        return float(np.exp(super().score(measured)))
