"""Solvers as functions of plain data: rounding of weights, allocation of formats, predicted times."""
