"""Arrays in files are arrays."""

import gc
import sys
from pathlib import Path

import numpy as np
import pytest

from ptqc.utils import store


def test_it_is_written_and_read_as_any_array() -> None:
    array = store.zeros((2, 300, 5))
    assert not array.any()
    array += 2.5
    array[1, 7] = np.arange(5)
    assert (array.shape, array.dtype, array[0].sum()) == ((2, 300, 5), np.float32, 2.5 * 1500)
    assert array[1, 7].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_its_pages_are_no_anonymous_memory_and_go_with_it() -> None:
    def anonymous() -> int:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Pss_Anon:"))

    def mapped() -> int:
        return sum("(deleted)" in line for line in Path("/proc/self/maps").read_text().splitlines())

    before = anonymous()
    array = store.zeros((16 << 20,))
    array += 1
    assert anonymous() - before < 8 << 10
    held = mapped()
    del array
    gc.collect()
    assert mapped() < held


def test_numbers_are_kept_in_a_file() -> None:
    array = np.arange(12, dtype=np.int8).reshape(3, 4).T
    kept = store.spool(array)
    assert np.array_equal(kept, array)
    assert kept.dtype == array.dtype
    assert not kept.flags.writeable
