"""Budgets of memory, and what a delivered file needs of it."""
