"""What every pass is: typed options as fields, an effect that is held to, and a result that says what happened."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Generic, Protocol, TypeVar

import numpy as np
import onnx_ir as ir

from ptqc.notes import Level, Note

Feeds = dict[str, np.ndarray]
Output = TypeVar("Output", covariant=True)
Input = TypeVar("Input", contravariant=True)


class Effect(Enum):
    """What a pass may change; `ptqc.passes.effects` and the pipeline hold every pass to it."""

    REWRITE = "rewrite"  # the same function: float outputs agree on a probe batch
    DECIDE = "decide"  # statistics and decisions are found; the model is untouched
    TUNE = "tune"  # weights, scales and biases change; the pass's own held-back loss does not grow
    LOWER = "lower"  # quantized operators appear; each layer gives the integers of the reference


@dataclass(frozen=True)
class Result(Generic[Output]):
    """The outcome of a pass.

    changed: whether `output` may differ from the input; it is checked then. notes: one for each place that the pass
    changed, or could have changed and did not.
    """

    output: Output
    changed: bool
    notes: tuple[Note, ...] = ()


class Pass(Protocol[Input, Output]):
    """One step of a compile. Its fields are its options; it holds no state."""

    name: ClassVar[str]
    effect: ClassVar[Effect]

    def apply(self, value: Input, /) -> Result[Output]:
        """Compute the output of the step."""
        ...


@dataclass(frozen=True)
class Probed:
    """A model that a rewrite changes in place, and the samples that its outputs are compared on."""

    model: ir.Model
    probe: Sequence[Feeds] = ()

    def rewritten(self, notes: Sequence[Note], *, unsaid: bool = False) -> Result["Probed"]:
        """The result of a rewrite. unsaid: whether anything may have changed that no note tells of."""
        return Result(self, unsaid or any(note.level != Level.SKIPPED for note in notes), tuple(notes))


Rewrite = Pass[Probed, Probed]
