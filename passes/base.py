"""What every pass is, and what its declared effect promises."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, Protocol

import numpy as np
import onnx_ir as ir

from ptqc.notes import Note

Feeds = dict[str, np.ndarray]


class Effect(Enum):
    """What a pass may change; `ptqc.passes.pipeline` holds every pass to it."""

    REWRITE = "rewrite"  # the same function: float outputs agree on a probe batch
    DECIDE = "decide"  # only plan and statistics change: model bytes unchanged
    TUNE = "tune"  # weights, scales, biases change: the pass's own held-back error did not grow
    LOWER = "lower"  # quantized operators appear: each layer gives the reference's integers


@dataclass
class RewriteContext:
    """What a REWRITE pass may look at: probe feeds that the pipeline compares outputs on, and a progress callback."""

    probe: Sequence[Feeds] = ()
    report: Callable[[str], None] = field(default=lambda _message: None)


class Rewrite(Protocol):
    """A pass that keeps the model's function. `apply` changes the model in place."""

    name: ClassVar[str]
    effect: ClassVar[Effect]

    def apply(self, model: ir.Model, context: RewriteContext) -> list[Note]:
        """Rewrite the model in place; one note for each place changed or skipped."""
        ...
