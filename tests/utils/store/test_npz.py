"""Archives of arrays, whatever they are called."""

from pathlib import Path

import numpy as np
import pytest

from ptqc.utils.store import write_npz

ARRAYS = {
    "file": np.arange(3),
    "allow_pickle": np.array(["a", "bc"]),
    "/a/b.c": np.array(1.5, np.float32),
    "é\n": np.zeros((0, 2), bool),
}


def test_every_name_comes_back(tmp_path: Path) -> None:
    write_npz(tmp_path / "a.npz", ARRAYS)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as result:
        assert {name: array.tolist() for name, array in result.items()} == {n: a.tolist() for n, a in ARRAYS.items()}


def test_python_objects_are_not_pickled(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="allow_pickle=False"):
        write_npz(tmp_path / "a.npz", {"x": np.array([{}])})
