"""Values come back from memory as they went in, and every place has one offset."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from ptqc.codegen.program.layout import SLACK, Frame, Layout

LAYOUTS = st.builds(
    Layout,
    st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple),
    st.sampled_from(["uint8", "float32"]),
    st.booleans(),
)


@st.composite
def framed(draw: st.DrawFn) -> Layout:
    """A plane inside a larger one."""
    shape, before, after = (draw(st.tuples(*[st.integers(low, 4)] * 3)) for low in (1, 0, 0))
    size = tuple(b + s + a for b, s, a in zip(before, shape, after, strict=True))
    return Layout(shape, "uint8", parent_buffer=Frame((size[0], size[1], size[2]), before))


@given(framed())
def test_a_framed_value_lies_in_the_memory_of_the_whole(layout: Layout) -> None:
    assert layout.parent_buffer is not None
    values = np.arange(1, layout.elements + 1).reshape(1, *layout.shape).astype("uint8")
    memory = layout.to_memory(values)
    whole = Layout(layout.parent_buffer.size, "uint8")
    assert memory.shape[1] == whole.stride
    assert np.count_nonzero(memory) == layout.elements
    places = tuple(slice(at, at + size) for at, size in zip(layout.parent_buffer.at, layout.shape, strict=True))
    np.testing.assert_array_equal(whole.from_memory(memory)[0][places], values[0])
    np.testing.assert_array_equal(layout.from_memory(memory), values)
    for channel, row, column in product(*map(range, layout.shape)):
        offset = layout.offset((channel, row, column))
        assert offset == layout.at(row, column, channel)
        assert memory[0, offset] == values[0, channel, row, column]


@given(LAYOUTS, st.integers(1, 3))
def test_values_come_back_from_memory(layout: Layout, batch: int) -> None:
    values = (np.arange(batch * layout.elements) % 251).reshape(batch, *layout.shape).astype(layout.dtype)
    memory = layout.to_memory(values)
    assert memory.shape == (batch, layout.elements + (0 if layout.is_io else SLACK))
    assert memory.dtype == layout.dtype
    np.testing.assert_array_equal(layout.from_memory(memory), values)


@given(LAYOUTS)
def test_every_place_has_one_offset_where_its_element_lies(layout: Layout) -> None:
    values = np.random.default_rng(0).permutation(layout.elements).astype(np.float32)
    values = values.reshape(1, *layout.shape)
    memory = Layout(layout.shape, "float32", layout.is_io).to_memory(values)[0]
    seen = set()
    for place in product(*map(range, layout.shape)):
        offset = layout.offset(place)
        assert layout.place(offset) == list(place)
        assert memory[offset] == values[(0, *place)]
        seen.add(offset)
    assert seen == set(range(layout.elements))


def test_channels_are_last_inside_only() -> None:
    assert Layout((3, 4, 5), "uint8").order == (1, 2, 0)
    assert Layout((3, 4, 5), "uint8", is_io=True).order == (0, 1, 2)
