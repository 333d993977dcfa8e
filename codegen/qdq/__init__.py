"""Builds a plain QDQ model with int8 weights, for runtimes that read no packed weights (OpenVINO, Qualcomm's NPUs)."""
