"""Sizes are those of a run; what is no tensor has none."""

import numpy as np
from graphs import parse

from ptqc.execution.shapes import observed_shapes


def test_sequences_of_unlike_tensors_have_no_sizes() -> None:
    model = parse("""g (float[N,3] x) => (float[N,2] y) {
        h = Sin(x)
        split = Constant <value = int64[2] {2, 1}> ()
        q = SplitToSequence <axis = 1> (h, split)
        zero = Constant <value = int64 {0}> ()
        y = SequenceAt(q, zero)
    }""")
    result = observed_shapes(model, {"x": np.zeros((1, 3), np.float32)})
    assert {name: result.get(name) for name in ("x", "h", "y", "q")} == {
        "x": (1, 3),
        "h": (1, 3),
        "y": (1, 2),
        "q": None,
    }
