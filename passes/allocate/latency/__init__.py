"""Budgets of time: operators are timed, in ONNX Runtime or in a library, and activations chosen by that."""
