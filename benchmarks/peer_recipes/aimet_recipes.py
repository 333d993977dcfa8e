"""AIMET-onnx: 8- and 4-bit weights, rounding by AdaRound, scales by sequential MSE, and its greedy mixed precision."""

import aimet_onnx
import numpy as np
import onnx
import onnxruntime
import recipe
from aimet_onnx import mixed_precision

BATCH = 32
STEPS = 15_000  # a layer, what it recommends for weights below 8 bits
SAME_CLASS = 0.95  # of the calibration samples keep their top class: what the mixed precision has to reach


def simulator(job: recipe.Job, weights: str) -> aimet_onnx.QuantizationSimModel:
    """Its defaults: weights per channel, activations in 8 bits, all ranges by minimum and maximum."""
    return aimet_onnx.QuantizationSimModel(
        onnx.load(job.model), param_type=weights, activation_type="int8", dummy_input=job.samples[0]
    )


def save(sim: aimet_onnx.QuantizationSimModel, job: recipe.Job) -> None:
    """Without prequantize_constants the file keeps its float weights and is larger than the float file."""
    onnx.save(sim.to_onnx_qdq(prequantize_constants=True), job.target)


def plain(weights: str) -> recipe.Recipe:
    def run(job: recipe.Job) -> None:
        sim = simulator(job, weights)
        sim.compute_encodings(recipe.batches(job.samples, BATCH))
        save(sim, job)

    return run


def adaround(job: recipe.Job) -> str:
    sim, inputs = simulator(job, "int4"), recipe.batches(job.samples, BATCH)
    steps = job.steps(STEPS)
    aimet_onnx.apply_adaround(sim, inputs, num_iterations=steps)
    sim.compute_encodings(inputs)
    save(sim, job)
    return f"{steps:,} steps a layer"


def seqmse(job: recipe.Job) -> None:
    sim, inputs = simulator(job, "int4"), recipe.batches(job.samples, BATCH)
    aimet_onnx.apply_seq_mse(sim, inputs)
    sim.compute_encodings(inputs)
    save(sim, job)


def outputs(session: onnxruntime.InferenceSession, inputs: list[recipe.Feeds]) -> np.ndarray:
    """(samples, values) of the first output."""
    results = [session.run(None, feeds)[0] for feeds in inputs]
    return np.concatenate([output.reshape(len(output), -1) for output in results])


def amp(job: recipe.Job) -> str:
    """Weights of 4 or 8 bits: as few bit operations as the agreement with the float model on the samples allows."""
    sim, inputs = simulator(job, "int8"), recipe.batches(job.samples, BATCH)
    wanted = outputs(onnxruntime.InferenceSession(str(job.model), providers=["CPUExecutionProvider"]), inputs)

    def score(session: onnxruntime.InferenceSession) -> float:
        return -float(np.square(outputs(session, inputs) - wanted).mean())

    def accepted(session: onnxruntime.InferenceSession) -> bool:
        return bool(np.mean(outputs(session, inputs).argmax(1) == wanted.argmax(1)) >= SAME_CLASS)

    precisions = [("int4", "int8"), ("int8", "int8")]
    sensitivities = mixed_precision.analyze_mixed_precision_sensitivity(sim, precisions, score, inputs)
    mixed_precision.apply_amp(sim, sensitivities, accepted)
    save(sim, job)
    return f"asked for {SAME_CLASS:.0%} same top-1 on the samples"


if __name__ == "__main__":
    recipes = {"w8a8": plain("int8"), "w4a8": plain("int4"), "w4a8-adaround": adaround, "w4a8-seqmse": seqmse}
    recipe.main("aimet-onnx", recipes | {"amp": amp})
