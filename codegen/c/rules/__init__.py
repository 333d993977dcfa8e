"""How operators become calls of C functions."""
