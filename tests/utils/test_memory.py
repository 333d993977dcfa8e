"""The peak that a compile tells: what is held counts, pages of mapped files do not."""

import mmap
import sys
import time
from pathlib import Path

import pytest

from ptqc.utils import memory
from ptqc.utils.memory import give_back, held_mb, peak_memory_mb, watched_memory

SIZE = 64 * 2**20

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@linux
def test_what_was_held_for_a_while_counts() -> None:
    before = held_mb()
    assert before is not None
    with watched_memory() as peak:
        held = bytearray(b"1") * SIZE
        time.sleep(4 * memory.EVERY)
        del held
        assert peak.mb > before + 50


@linux
def test_pages_of_mapped_files_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(SIZE))
    with watched_memory() as peak, (tmp_path / "data").open("rb") as file:
        before = peak.mb
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            assert not sum(mapped[place] for place in range(0, SIZE, mmap.PAGESIZE))
            time.sleep(4 * memory.EVERY)
        assert peak.mb < before + 30


def test_where_the_system_does_not_tell_it_is_the_resident_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "STATUS", Path("nowhere"))
    assert held_mb() is None
    with watched_memory() as peak:
        assert peak.mb == pytest.approx(peak_memory_mb(), rel=0.05)


@pytest.mark.skipif(not hasattr(memory.LIBRARY, "malloc_trim"), reason="the allocator is not glibc's")
def test_what_lies_free_between_held_arrays_goes_back_above_a_limit() -> None:
    several = [bytearray(b"1") * 2**16 for _ in range(1000)]
    kept = several[::20]
    before = held_mb()
    assert before is not None
    del several
    assert not give_back(before + 1000)
    assert give_back(0.0)
    after = held_mb()
    assert after is not None
    assert after < before - 30
    assert all(each == b"1" * 2**16 for each in kept)
