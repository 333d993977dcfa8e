"""Passes that measure and decide; the model stays as it is."""
