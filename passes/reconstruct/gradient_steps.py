"""How the gradient steps behind reconstruction go; readable where torch is not installed."""

from dataclasses import dataclass

STEP = "tune-features"


@dataclass(frozen=True)
class GradientSteps:
    """steps: updates. batch: samples of one. looks: how often the held-back loss is measured.

    Learning rates: code_rate in levels, scale_rate relative, bias_rate in deviations of the layer's output.
    """

    steps: int = 120
    batch: int = 8
    code_rate: float = 5e-3
    scale_rate: float = 1e-3
    bias_rate: float = 1e-3
    looks: int = 4
