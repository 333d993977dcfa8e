"""Values come back from memory as they went in, and every place has one offset."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from ptqc.codegen.tvm.layout import SLACK, Layout

LAYOUTS = st.builds(
    Layout,
    st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple),
    st.sampled_from(["uint8", "float32"]),
    st.booleans(),
)


@given(LAYOUTS, st.integers(1, 3))
def test_values_come_back_from_memory(layout: Layout, batch: int) -> None:
    values = (np.arange(batch * layout.elements) % 251).reshape(batch, *layout.shape).astype(layout.dtype)
    memory = layout.to_memory(values)
    assert memory.shape == (batch, layout.elements + (0 if layout.outside else SLACK))
    assert memory.dtype == layout.dtype
    np.testing.assert_array_equal(layout.from_memory(memory), values)


@given(LAYOUTS)
def test_every_place_has_one_offset_where_its_element_lies(layout: Layout) -> None:
    values = np.random.default_rng(0).permutation(layout.elements).astype(np.float32)
    values = values.reshape(1, *layout.shape)
    memory = Layout(layout.shape, "float32", layout.outside).to_memory(values)[0]
    seen = set()
    for place in product(*map(range, layout.shape)):
        offset = layout.offset(place)
        assert layout.place(offset) == list(place)
        assert memory[offset] == values[(0, *place)]
        seen.add(offset)
    assert seen == set(range(layout.elements))


def test_channels_are_last_inside_only() -> None:
    assert Layout((3, 4, 5), "uint8").order == (1, 2, 0)
    assert Layout((3, 4, 5), "uint8", outside=True).order == (0, 1, 2)
