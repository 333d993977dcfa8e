"""Packing of the lowered graph into a file that stock ONNX Runtime runs on integer kernels."""
