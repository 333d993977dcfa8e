"""AMD Quark in 8 bits: plain, with AdaRound, with AdaQuant. For convolutions it has no integers of 4 bits in ONNX."""

import functools

import recipe
from quark.onnx import ModelQuantizer
from quark.onnx.quantization.config import QConfig
from quark.onnx.quantization.config.algorithm import AdaQuantConfig, AdaRoundConfig, AlgoConfig
from quark.onnx.quantization.config.spec import CalibMethod, Int8Spec, QLayerConfig, QuantGranularity, UInt8Spec

# Learning rate and steps per layer as in its own presets.
ADAROUND, ADAQUANT, BATCH = (0.1, 1000), (1e-5, 3000), 2


def quantize(job: recipe.Job, algorithms: list[AlgoConfig]) -> None:
    """Activations in 8 bits by MinMax, weights per channel: the same choices as for ONNX Runtime's tools."""
    weights = Int8Spec(calibration_method=CalibMethod.MinMax, quant_granularity=QuantGranularity.Channel)
    layers = QLayerConfig(activation=UInt8Spec(calibration_method=CalibMethod.MinMax), weight=weights)
    quantizer = ModelQuantizer(QConfig(global_config=layers, algo_config=algorithms))
    quantizer.quantize_model(str(job.model), str(job.target), recipe.Reader(job.samples))


def int8(job: recipe.Job) -> None:
    quantize(job, [])


def tuned(kind: type[AlgoConfig], preset: tuple[float, int], job: recipe.Job) -> str:
    rate, steps = preset[0], job.steps(preset[1])
    quantize(job, [kind(learning_rate=rate, num_iterations=steps, batch_size=BATCH, early_stop=True)])
    return f"at most {steps:,} steps a layer"


if __name__ == "__main__":
    adaround = functools.partial(tuned, AdaRoundConfig, ADAROUND)
    adaquant = functools.partial(tuned, AdaQuantConfig, ADAQUANT)
    recipe.main("amd-quark", {"int8": int8, "int8-adaround": adaround, "int8-adaquant": adaquant})
