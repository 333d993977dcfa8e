"""A list of the operators."""
