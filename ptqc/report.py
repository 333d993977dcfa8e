"""The self-contained HTML report."""

from collections.abc import Mapping
from typing import Any


def render(manifest: Mapping[str, Any], plan: Mapping[str, Any], sensitivity: Mapping[str, Any]) -> str:
    """HTML text."""
    return "<!doctype html><title>ptqc</title>"
