"""ONNX Runtime's own static int8 file of a model: what its quantization tools give with sensible choices."""

import tempfile
from collections.abc import Iterable
from pathlib import Path

from harness import Feeds


class Reader:
    """Calibration samples in the form that ONNX Runtime's tools ask for: one dict at a time, then None."""

    def __init__(self, samples: Iterable[Feeds]) -> None:
        self._left = iter(samples)

    def get_next(self) -> Feeds | None:
        """The next sample."""
        return next(self._left, None)


def quantize(source: Path, target: Path, samples: list[Feeds]) -> None:
    """Write the int8 file: QDQ, u8 activations by MinMax, s8 weights per channel, after the tools' own preparation."""
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory(prefix="ptqc-bench-") as folder:
        prepared = Path(folder) / "prepared.onnx"
        quant_pre_process(str(source), str(prepared))
        quantize_static(
            str(prepared),
            str(target),
            Reader(samples),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
        )
