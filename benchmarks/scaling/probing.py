"""What solving one weight takes whose model is too large to be compiled here: of its width, with fewer outputs."""

import time
from collections.abc import Sequence

import numpy as np

from ptqc.formats import Integer, Scaled
from ptqc.ir.layers import Layer
from ptqc.passes.quantize import gptq
from ptqc.passes.quantize.moments import WIDEST_GRAM, bytes_of
from ptqc.passes.quantize.solve_weights import WeightProblem
from ptqc.utils.threads import one_blas_thread
from scaling.tracing import UnitTimes

# Outputs that a weight is tried with; its time grows by as much with each.
OUTPUTS = (256, 768)
# How many numbers the inputs depend on beside what each has of its own.
COMMON = 64


def probed(widths: Sequence[int], bits: int = 4, outputs: Sequence[int] = OUTPUTS) -> list[UnitTimes]:
    """Times of weights of these many inputs, in the one format that a large model is solved in."""
    return [_probed(width, channels, bits) for width in widths for channels in outputs]


def _probed(width: int, channels: int, bits: int) -> UnitTimes:
    forms = [Integer(bits)]
    problem = problem_of(width, channels, forms)
    with one_blas_thread():
        began = time.thread_time()
        problem.solve()
        took = time.thread_time() - began
    return UnitTimes(
        number=0,
        label=f"{channels} of {width}",
        channels=channels,
        width=width,
        size=channels * width,
        forms=len(forms),
        moments=bytes_of(1, width),
        problem=0,
        result=0,
        make=0.0,
        solve=took,
    )


def problem_of(width: int, channels: int, forms: Sequence[Scaled]) -> WeightProblem:
    """A weight of random numbers, and second moments of inputs that depend on each other."""
    random = np.random.default_rng(0)
    common = random.standard_normal((width, COMMON), np.float32) / np.float32(COMMON**0.5)
    if width > WIDEST_GRAM:
        second = 1 + (common**2).sum(1)[None]
    else:
        second = (common @ common.T + np.eye(width, dtype=np.float32))[None]
    values = random.standard_normal((width, channels), np.float32)
    layer = Layer("y", "MatMul", "x", "w", None, "y", values.shape, 1)
    return WeightProblem(
        values,
        forms,
        1,
        layer=layer,
        second=second,
        held=second,
        alone=second.ndim == 3,
        numbers=gptq.NUMBERS,
    )
