"""The one way to run a graph: ONNX Runtime, whole models with taps or node by node over a stream of samples."""
