"""Calibration data: reading and checking samples, and the ranges observed on them."""
