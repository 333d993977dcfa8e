"""Calibration readers with a fault each: a one-line error that says which sample, which input and what is wrong."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from compiling import proto, quick, weight

import ptqc
from ptqc.errors import CalibrationError

GOOD = np.ones((1, 8), np.float32)
MODEL = "g (float[N,8] x) => (float[N,8] y) { y = Gemm(x, w) }"


def then(*items: Any) -> Callable[[], Iterator[Any]]:
    """A generator of two good samples and then these; an exception is raised."""

    def generate() -> Iterator[Any]:
        yield {"x": GOOD}
        yield {"x": GOOD}
        for item in items:
            if isinstance(item, Exception):
                raise item
            yield item

    return generate


class Unending:
    """get_next gives something that is no sample for ever."""

    def get_next(self) -> Any:
        return "sample"


class Failing:
    """get_next raises at once."""

    def get_next(self) -> Any:
        raise OSError(5, "Input/output error")


class Unsized:
    """An object whose length and iterator raise."""

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("no iterator")


def objects() -> np.ndarray:
    result = np.empty((1, 8), object)
    result[:] = "one"
    return result


def nan(value: float) -> np.ndarray:
    result = GOOD.copy()
    result[0, 3] = value
    return result


READERS: dict[str, tuple[Callable[[], Any], str]] = {
    "wrong name": (then({"z": GOOD}), "samples[2]: "),
    "no name": (then({}), "samples[2]: "),
    "one name too many": (then({"x": GOOD, "z": GOOD}), "samples[2]: "),
    "number as name": (then({3: GOOD}), "samples[2]: "),
    "another rank": (then({"x": GOOD[None, None]}), "samples[2], input 'x': "),
    "another size": (then({"x": GOOD[:, :7]}), "samples[2], input 'x': "),
    "integers": (then({"x": GOOD.astype(np.int64)}), "samples[2], input 'x': "),
    "complex numbers": (then({"x": GOOD.astype(np.complex64)}), "samples[2], input 'x': "),
    "truth values": (then({"x": GOOD > 0}), "samples[2], input 'x': "),
    "objects": (then({"x": objects()}), "samples[2], input 'x': "),
    "text": (then({"x": "picture.png"}), "samples[2], input 'x': "),
    "nothing in it": (then({"x": None}), "samples[2], input 'x': "),
    "ragged lists": (then({"x": [[1.0] * 8, [2.0]]}), "samples[2], input 'x': "),
    "NaN": (then({"x": nan(np.nan)}), "samples[2], input 'x': "),
    "infinite": (then({"x": nan(np.inf)}), "samples[2], input 'x': "),
    "beyond float32": (then({"x": nan(1e30).astype(np.float64) * 1e30}), "samples[2], input 'x': "),
    "texts beside it": (then((GOOD, "cat")), "samples[2]: "),
    "raises": (then(ValueError("no more\nof them")), "samples[2]: reading the generator raised ValueError: no more"),
    "raises a system error": (Failing, "samples[0]: reading the reader Failing raised OSError"),
    "ends after one": (lambda: iter([{"x": GOOD}]), "one calibration sample was given"),
    "gives none": (lambda: iter([]), "holds no samples"),
    "gives what is no sample": (Unending, "samples[0], input 'x': "),
    "neither length nor iterator": (Unsized, "cannot read calibration samples from"),
    "a generator that was not called": (lambda: then(), "cannot read calibration samples from"),
    "an array of objects": (lambda: np.array([{"x": GOOD}, None], object), "input 'x'"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    onnx.save(proto(MODEL, w=weight(8, 8)), path)
    return path


@pytest.mark.parametrize("name", READERS)
def test_it_is_refused(name: str, model: Path, tmp_path: Path) -> None:
    make, message = READERS[name]
    with pytest.raises(CalibrationError) as caught:
        ptqc.compile(model, calibration=make(), output=tmp_path / "out", cache=tmp_path / "cache")
    assert message in str(caught.value)
    assert caught.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_good_reader_is_not(model: Path, tmp_path: Path) -> None:
    with quick():
        ptqc.compile(
            model, calibration=then({"x": GOOD})(), output=tmp_path / "out", cache=tmp_path / "cache", bits=(4,)
        )
