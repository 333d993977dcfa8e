import numpy as np
import pytest
from graphs import noise, parse

from ptqc.formats import FLOAT16, FLOAT32, Codebook, Format, Integer, Palette, VectorCodebook
from ptqc.formats.trellis import RowTrellis
from ptqc.ir import layers

READERS = {
    "two nodes pick rows": ("a = Gather(t, i) b = Gather(t, j) y = Concat <axis = 0> (a, b)", 2),
    "a sum reads it too": ("a = Gather(t, i) y = Add(a, t)", 0),
    "columns are picked": ("y = Gather <axis = 1> (t, i)", 0),
    "the place is one number": ("y = Gather(t, k)", 0),
    "the places are constant": ("y = Gather(t, first)", 0),
    "it is what is picked from nothing": ("y = Gather(u, i)", 0),
}


@pytest.mark.parametrize("case", READERS)
def test_what_picks_rows(case: str) -> None:
    body, count = READERS[case]
    model = parse(
        f"g (int64[N] i, int64[N] j, int64 k) => (float y) {{ {body} }}",
        t=noise(9, 8),
        u=noise(9, 8),
        first=np.array([0]),
    )
    assert len(layers.pickers(model.graph.initializers["t"])) == count


def test_a_subgraph_that_picks_rows_reads_the_table_whole() -> None:
    model = parse(
        """g (int64[N] i, bool c) => (float y) {
            y = If (c) <
                then_branch = a () => (float p) { p = Gather(t, i) },
                else_branch = b () => (float q) { q = Gather(t, i) }
            >
        }""",
        t=noise(9, 8),
    )
    assert layers.pickers(model.graph.initializers["t"]) == ()


@pytest.mark.parametrize(
    ("form", "shape", "fits"),
    [
        (Integer(3), (5, 8), True),
        (Integer(3), (5, 12), False),
        (Integer(8), (5, 3), True),
        (Codebook(4), (5, 16), True),
        (VectorCodebook(5), (5, 16), True),
        (VectorCodebook(5), (5, 8), False),
        (VectorCodebook(8), (5, 6), True),
        (VectorCodebook(8), (5, 7), False),
        (RowTrellis(4), (5, 48), True),
        (RowTrellis(4), (2, 5, 48), False),
        (Integer(4), (8,), False),
        (Integer(4), (2, 8, 8), False),
        (Palette(2), (8, 8), False),
        (FLOAT16, (8, 8), False),
        (FLOAT32, (8, 8), False),
    ],
)
def test_rows_of_whole_bytes(form: Format, shape: tuple[int, ...], fits: bool) -> None:
    assert layers.is_by_row(form, shape) == fits


def test_small_tables_are_unpacked() -> None:
    assert layers.stays_packed(Integer(4), (2**15, 8))
    assert not layers.stays_packed(Integer(4), (2**15 - 1, 8))
    assert not layers.stays_packed(Integer(4), (2**15, 9))
