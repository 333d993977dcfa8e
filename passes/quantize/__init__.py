"""Calibration, candidates for every weight, and what each costs: measured once, whatever the budgets."""
