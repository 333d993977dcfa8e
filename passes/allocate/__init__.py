"""Allocation: which formats and activations the budgets buy, by integer programming, and the file that keeps them."""
