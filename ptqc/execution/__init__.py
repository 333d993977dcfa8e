"""The one way to run a graph: ONNX Runtime, or torch where gradients are needed (`ptqc.execution.torch`)."""
