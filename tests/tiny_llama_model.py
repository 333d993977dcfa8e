"""The small decoder of models/, as the tests of the rewrites take it."""

import sys
from pathlib import Path

import onnx_ir as ir

from ptqc.passes.base import Feeds
from ptqc.passes.canonicalize.rewrites import default_rewrites
from ptqc.passes.runner import run_rewrites

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "models"))

import tiny_llama


def without_cache(outliers: bool = False, length: int = 12) -> tuple[ir.Model, Feeds]:
    """In normal form, with one sample."""
    return _normal(outliers, tiny_llama.sample(length, cache=False), cache=False)


def with_cache(outliers: bool = False, length: int = 6, past: int = 5) -> tuple[ir.Model, Feeds]:
    """In normal form, with one sample."""
    return _normal(outliers, tiny_llama.sample(length, past), cache=True)


def _normal(outliers: bool, feeds: Feeds, cache: bool) -> tuple[ir.Model, Feeds]:
    model = ir.from_proto(tiny_llama.build(outliers, cache))
    run_rewrites(model, default_rewrites(), [feeds])
    return model, feeds
