"""The gradient steps behind reconstruction, where torch is installed and can run the model."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar

from ptqc.errors import Unsupported
from ptqc.ir.quantized_weight import QuantizedParameters
from ptqc.notes import Level, Note, out_of_time
from ptqc.passes.base import Effect, Result
from ptqc.passes.quantize.phases import TunablePlan
from ptqc.passes.reconstruct.gradient_steps import STEP, GradientSteps


@dataclass(frozen=True)
class TuneFeatures(GradientSteps):
    """Gradient steps on codes, scales and biases towards the features of the float model, with torch."""

    name: ClassVar[str] = STEP
    effect: ClassVar[Effect] = Effect.TUNE

    def apply(self, tunable: TunablePlan) -> Result[QuantizedParameters]:
        """The plan's numbers after every gradient step that lowered the held-back loss; else as they were, and why."""
        if find_spec("torch") is None:
            return _declined(tunable, "torch is not installed: pip install 'ptqc[torch]'")
        if not tunable.analysis.deadline.leaves(0):
            return Result(tunable.tuned, False, (out_of_time("no gradient steps"),))
        from ptqc.execution.torch.graph import one_torch_thread
        from ptqc.passes.reconstruct.gradients import tune_features

        try:
            with one_torch_thread():
                return tune_features(self, tunable)
        except Unsupported as reason:
            return _declined(tunable, str(reason))


def _declined(tunable: TunablePlan, reason: str) -> Result[QuantizedParameters]:
    return Result(tunable.tuned, False, (Note(STEP, "", f"no gradient steps: {reason}", Level.SKIPPED),))
