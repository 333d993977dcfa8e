import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ptqc.formats import scales


def test_scales_are_stored_in_half_precision_where_that_loses_nothing() -> None:
    ones = np.ones(2, np.float32)
    fine = scales.storable(np.array([0.1, 3.0], np.float32), ones)
    assert fine.astype(np.float16).astype(np.float32).tolist() == fine.tolist()
    for extreme in (2.0**-15, 2.0**15 + 32):
        kept = np.array([0.1, extreme], np.float32)
        assert scales.storable(kept, ones).tolist() == kept.tolist()


@given(hnp.arrays(np.float32, 5, elements=st.floats(-1e6, 1e6, width=32) | st.floats(-1e3, 1e3, width=16)))
def test_scales_are_narrowed_only_where_that_is_exact(scale: np.ndarray) -> None:
    narrow = scales.narrow(scale)
    np.testing.assert_array_equal(narrow.astype(np.float32), scale)
    assert narrow.dtype in (np.float16, np.float32)


def test_half_precision_scales() -> None:
    assert scales.narrow(np.array([0.5, 0.25], np.float32)).dtype == np.float16
    assert scales.narrow(np.array([0.5, 0.1], np.float32)).dtype == np.float32
