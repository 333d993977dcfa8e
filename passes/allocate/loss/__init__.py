"""Budgets of loss: criteria, the samples that judge, and the search for the smallest file that keeps one."""
