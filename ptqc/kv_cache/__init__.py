"""Formats in which caches of keys and values are stored: their numbers, and the nodes that pack and unpack them."""
