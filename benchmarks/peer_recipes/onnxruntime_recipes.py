"""ONNX Runtime's own tools: static QDQ files with 8- and 4-bit weights, and 4-bit blocks for matrix products."""

import tempfile
from pathlib import Path

import onnx
import recipe
from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.quantization.shape_inference import quant_pre_process

INT4_OPSET = 21  # the first one whose DequantizeLinear takes 4-bit integers


def static(job: recipe.Job, weights: QuantType, opset: int | None = None) -> None:
    """Activations in 8 bits by MinMax, weights per channel, after the tools' own preparation."""
    with tempfile.TemporaryDirectory() as folder:
        source, prepared = Path(folder) / "source.onnx", Path(folder) / "prepared.onnx"
        model = onnx.load(job.model)
        onnx.save(onnx.version_converter.convert_version(model, opset) if opset else model, source)
        quant_pre_process(str(source), str(prepared))
        quantize_static(
            str(prepared),
            str(job.target),
            recipe.Reader(job.samples),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=weights,
            calibrate_method=CalibrationMethod.MinMax,
        )


def int8(job: recipe.Job) -> None:
    static(job, QuantType.QInt8)


def int4_weights(job: recipe.Job) -> None:
    static(job, QuantType.QInt4, INT4_OPSET)


def matmul_int4(job: recipe.Job) -> None:
    """Blocks of 32 weights; refuses a model without a MatMul of constant weights, where the tool would do nothing."""
    quantizer = MatMulNBitsQuantizer(onnx.load(job.model), block_size=32, is_symmetric=True)
    quantizer.process()
    if all(node.op_type != "MatMulNBits" for node in quantizer.model.model.graph.node):
        raise ValueError("no MatMul with constant weights in this model")
    quantizer.model.save_model_to_file(str(job.target))


if __name__ == "__main__":
    recipe.main("onnxruntime", {"int8": int8, "int4-weights": int4_weights, "matmul-int4": matmul_int4})
