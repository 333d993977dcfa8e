"""The delivered folder: written whole or not at all, opened with its checks, run, verified anew."""
