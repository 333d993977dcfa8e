"""Passes that give a plan its final numbers."""
