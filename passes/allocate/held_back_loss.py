"""Packed files against the float model, on held-back samples."""

import onnx
import onnx_ir as ir

from ptqc.calibration.samples import Samples
from ptqc.errors import ModelError, VerificationError
from ptqc.execution.bounded import outputs_in_files
from ptqc.execution.onnxruntime import Runner, open_packed
from ptqc.losses import Kinds, OutputLoss

COMPARED_SAMPLES = 64


class HeldBackLoss:
    """Mean loss of a packed file, in the unit of the kinds."""

    def __init__(self, model: ir.Model, held_back: Samples, kinds: Kinds) -> None:
        self._samples = held_back[:COMPARED_SAMPLES]
        self._model, real = model, Runner(model)
        self._expected = outputs_in_files(real.run(feeds) for feeds in self._samples)
        self._loss = OutputLoss.of(kinds, self._expected)

    def __call__(self, file: onnx.ModelProto) -> float:
        """Loss of a file. Raises VerificationError for a file that does not load or has other outputs."""
        try:
            packed = open_packed(file, self._model)
        except ModelError as error:
            raise VerificationError(f"the written file does not load: {error}") from error
        if packed.outputs != list(self._expected[0]):
            raise VerificationError(f"the written file's interface has other outputs: {', '.join(packed.outputs)}")
        outputs = (packed.run(feeds) for feeds in self._samples)
        return self._loss.mean(self._expected, outputs)
