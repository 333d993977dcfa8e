"""A convolution or product of codes, as every kernel for one takes it."""

from dataclasses import dataclass

import numpy as np

from ptqc.codegen.cuda.isa import BY_ELEMENT
from ptqc.codegen.cuda.results import CodedResults
from ptqc.codegen.kernels.epilogue import NOTHING, Epilogue
from ptqc.codegen.kernels.requantization import Requantization
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.window import Window


@dataclass(frozen=True, eq=False)
class CodedLayer:
    """Codes times weights (outputs, inputs, *kernel) of whole numbers that int8 holds.

    x, y: how a sample of its input and of its output lies; y is codes, or real values where it is float32.
    """

    x: Layout
    y: Layout
    window: Window
    weights: np.ndarray
    requantization: Requantization
    epilogue: Epilogue = NOTHING

    @property
    def codes(self) -> np.ndarray:
        """The weights in int8."""
        return self.weights.astype(np.int8)

    @property
    def results(self) -> CodedResults:
        """What becomes of its sums."""
        return CodedResults(self.y, BY_ELEMENT, len(self.weights), self.requantization, self.epilogue)
