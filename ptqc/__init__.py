"""ptqc: a post-training quantization compiler for ONNX models."""

__version__ = "0.1.0"
