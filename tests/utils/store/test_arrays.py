"""Mapped arrays are those that safetensors wrote."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ptqc.utils.store import DTYPES, mapped


def test_every_type_is_read_as_the_library_wrote_it(tmp_path: Path) -> None:
    wanted = {name: np.arange(6).reshape(2, 3).astype(dtype) for name, dtype in DTYPES.items()}
    wanted |= {"empty": np.zeros((0, 4)), "scalar": np.array(2.5)}
    save_file(wanted, tmp_path / "a", {"format": "np"})
    result = mapped(tmp_path / "a")
    assert result.keys() == wanted.keys()
    for name, array in result.items():
        assert (array.dtype, array.shape) == (wanted[name].dtype, wanted[name].shape)
        np.testing.assert_array_equal(array, wanted[name])


def test_no_arrays(tmp_path: Path) -> None:
    save_file({}, tmp_path / "none")
    assert mapped(tmp_path / "none") == {}


def test_what_is_mapped_cannot_be_written_and_outlives_the_file(tmp_path: Path) -> None:
    save_file({"x": np.arange(4)}, tmp_path / "x")
    array = mapped(tmp_path / "x")["x"]
    (tmp_path / "x").unlink()
    assert array.tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 7


def test_an_unknown_type_is_named(tmp_path: Path) -> None:
    save_file({"x": np.ones(3, np.complex64)}, tmp_path / "x")
    with pytest.raises(ValueError, match=r"'x' of type C64; known are BOOL, U8"):
        mapped(tmp_path / "x")


@pytest.mark.parametrize("content", [b"", b"{}"])
def test_what_is_no_such_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ValueError):  # noqa: PT011  (of mmap and json)
        mapped(tmp_path / "x")
