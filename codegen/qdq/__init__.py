"""A plain QDQ model with int8 weights, for OpenVINO, Qualcomm's NPUs and others that read no packed weights."""
