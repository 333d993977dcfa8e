"""Paths that no system has are told as such, and are no fault of the compiler."""

from pathlib import Path

import numpy as np
import pytest

from ptqc.calibration.inputs import InputSpec
from ptqc.calibration.sources import open_source
from ptqc.calibration.texts import holds_texts
from ptqc.errors import UsageError
from ptqc.utils.arguments import path_of

LONG = "a" * 300


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (LONG, "model is not a path: File name too long, aaa"),
        ("a\0b", r"model is 'a\\x00b', which is not a path"),
        ("", "model is ''; give a path"),
        (b"a", "model is b'a'; give a path"),
    ],
)
def test_what_is_no_path(value: object, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        path_of("model", value)


def test_a_path_need_not_exist(tmp_path: Path) -> None:
    assert path_of("model", str(tmp_path / "a" / "b")) == tmp_path / "a" / "b"


def test_data_are_looked_at_too() -> None:
    with pytest.raises(UsageError, match="calibration data is not a path: File name too long"):
        open_source(LONG, [InputSpec("x", np.dtype(np.float32), (1,))], 1)
    with pytest.raises(UsageError, match="calibration data is not a path: File name too long"):
        holds_texts(LONG)
