"""Caches of keys and values packed, as asked for or chosen within a budget, and checked on samples."""
