"""Caches of keys and values packed: as `--kv-cache` says, or each as `--budget 25%cache` and its loss allow."""
