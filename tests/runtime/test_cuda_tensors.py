"""Tensors on a GPU that a library does not take, and what is told of each."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ptqc.errors import GpuMemoryError, TargetError, UsageError
from ptqc.runtime.cuda import are_on_gpu, refusal_of, take
from ptqc.runtime.interface import Interface


def interface(folder: Path, value: list[float] | None = None) -> Interface:
    entry = {"name": "x", "dtype": "float32", "shape": [None, 3]} | ({"value": value} if value else {})
    document = {"libraries": [], "tvm": "0", "threads": 0, "inputs": [entry], "outputs": []}
    (folder / "interface.json").write_text(json.dumps(document))
    return Interface.read(folder / "interface.json")


def tensor(**changed: Any) -> Any:
    """Of torch or another library, on the first GPU."""
    usual = {"shape": (4, 3), "dtype": "float32", "is_contiguous": lambda: True, "data_ptr": lambda: 512}
    result = SimpleNamespace(**{**usual, **changed})
    device = changed.get("device", (2, 0))
    result.__dlpack__ = result.__dlpack_device__ = lambda: device
    return result


FFI = SimpleNamespace(from_dlpack=lambda given: given)


def test_tensors_are_taken_where_they_lie(tmp_path: Path) -> None:
    value = tensor()
    taken = take(FFI, {"x": value}, interface(tmp_path), 0)
    assert taken.inputs["x"] is value
    assert (taken.stream, taken.shapes) == (0, {"x": (4, 3)})


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"device": (2, 1)}, "input 'x' is on cuda:1; the library on cuda:0"),
        ({"shape": (4, 5)}, r"input 'x' is float32 \[4, 5\]; expected float32 \[N, 3\]"),
        ({"dtype": "float16"}, r"input 'x' is float16 \[4, 3\]"),
        ({"is_contiguous": lambda: False}, "not contiguous, or does not begin at a multiple of 64 bytes; give a copy"),
        ({"data_ptr": lambda: 520}, "not contiguous, or does not begin at a multiple of 64 bytes; give a copy"),
    ],
)
def test_what_is_not_taken_is_told(changed: dict[str, Any], expected: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=expected):
        take(FFI, {"x": tensor(**changed)}, interface(tmp_path), 0)


def test_an_input_with_one_value_has_to_be_an_array(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="built for one value of input 'x': give NumPy arrays"):
        take(FFI, {"x": tensor()}, interface(tmp_path, [1.0]), 0)


def test_what_does_not_speak_dlpack_is_told(tmp_path: Path) -> None:
    def refuse(_given: Any) -> Any:
        raise BufferError("it needs a gradient")

    with pytest.raises(UsageError, match="input 'x' cannot be taken by DLPack: it needs a gradient"):
        take(SimpleNamespace(from_dlpack=refuse), {"x": tensor()}, interface(tmp_path), 0)


def test_inputs_lie_on_the_gpu_all_or_none() -> None:
    assert are_on_gpu({"x": tensor(), "y": tensor()})
    assert not are_on_gpu({"x": np.zeros(3), "y": tensor(device=(1, 0))})
    with pytest.raises(UsageError, match="on the GPU all or none: 'x' is on a GPU, 'y' is not"):
        are_on_gpu({"x": tensor(), "y": np.zeros(3)})


@pytest.mark.parametrize(
    ("expected", "kind", "result"),
    [
        ("CUDA: out of memory", GpuMemoryError, "cuda:3 has no memory left for the library"),
        ("CUDA_ERROR_OUT_OF_MEMORY", GpuMemoryError, "give fewer samples at a time"),
        ("cuModuleLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU", TargetError, "no machine code for cuda:3"),
        ("CUDA_ERROR_UNSUPPORTED_PTX_VERSION", TargetError, "name its architecture in --gpu"),
    ],
)
def test_failures_with_reasons_of_their_own_are_told(expected: str, kind: type[Exception], result: str) -> None:
    refused = refusal_of(RuntimeError(expected), 3)
    assert type(refused) is kind
    assert result in str(refused)


def test_other_failures_are_faults_of_the_library() -> None:
    assert refusal_of(RuntimeError("CUDA_ERROR_LAUNCH_FAILED"), 0) is None
