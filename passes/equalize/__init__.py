"""Outlier channels made small before rounding: scaled, rotated, reordered, or split off."""
