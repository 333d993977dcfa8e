"""Rewrites: the same function in the form that later passes expect."""
