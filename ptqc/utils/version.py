"""The version of ptqc, which artifacts and entries of the store name."""

__version__ = "0.1.0"
