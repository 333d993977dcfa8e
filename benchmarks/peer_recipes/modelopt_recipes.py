"""NVIDIA ModelOpt on ONNX files, in 8 bits, calibrated on the CPU.

Told to write integer weights; else they are floats that are quantized in every run. What is not quantized stays
float32, as in the other files.
"""

import recipe
from modelopt.onnx.quantization import quantize


class Reader(recipe.Reader):
    """Samples, of which ModelOpt looks at the first by itself."""

    def get_first(self) -> recipe.Feeds:
        return self._samples[0]


def int8(job: recipe.Job) -> None:
    quantize(
        str(job.model),
        quantize_mode="int8",
        calibration_data_reader=Reader(job.samples),
        calibration_eps=["cpu"],
        high_precision_dtype="fp32",
        dq_only=True,
        output_path=str(job.target),
    )


if __name__ == "__main__":
    recipe.main("nvidia-modelopt", {"int8": int8})
