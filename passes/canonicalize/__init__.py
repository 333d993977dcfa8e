"""Rewrites that keep the function, into the form that later passes expect."""
