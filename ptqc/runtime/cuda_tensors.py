"""Tensors of other libraries on a GPU, taken and given by DLPack without a copy."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptqc.errors import UsageError
from ptqc.runtime.interface import Interface
from ptqc.runtime.library import ALIGNMENT

GPU = 2  # kDLCUDA


@dataclass(frozen=True)
class GpuFeeds:
    """Inputs as TVM has them. stream: that they come on. give: makes an output what the caller's library has."""

    inputs: Mapping[str, Any]
    stream: int
    give: Callable[[Any], Any]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """By name."""
        return {name: tuple(tensor.shape) for name, tensor in self.inputs.items()}


def are_on_gpu(feeds: Mapping[str, Any]) -> bool:
    """Whether inputs are on a GPU. Raises UsageError where only some are."""
    found = {name: _is_on_gpu(value) for name, value in feeds.items()}
    if len(set(found.values())) > 1:
        where = ", ".join(f"{name!r} is {'on a GPU' if is_there else 'not'}" for name, is_there in found.items())
        raise UsageError(f"inputs have to be on the GPU all or none: {where}")
    return any(found.values())


def _is_on_gpu(value: Any) -> bool:
    return not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__") and value.__dlpack_device__()[0] == GPU


def take(ffi: Any, feeds: Mapping[str, Any], interface: Interface, index: int) -> GpuFeeds:
    """Inputs where they lie. Raises UsageError for what the interface does not take, or TVM cannot read there."""
    inputs = {}
    for value in interface.inputs:
        given = feeds[value.name]
        tensor = _imported(ffi, value.name, given)
        if given.__dlpack_device__()[1] != index:
            raise UsageError(
                f"input {value.name!r} is on cuda:{given.__dlpack_device__()[1]}; the library on cuda:{index}"
            )
        value.check_kind(np.dtype(str(tensor.dtype)), tuple(tensor.shape))
        if value.value is not None:
            raise UsageError(f"the library was built for one value of input {value.name!r}: give NumPy arrays")
        if not tensor.is_contiguous() or tensor.data_ptr() % ALIGNMENT:
            raise UsageError(
                f"input {value.name!r} is not contiguous, or does not begin at a multiple of {ALIGNMENT} bytes; "
                "give a copy of it"
            )
        inputs[value.name] = tensor
    torch = sys.modules.get("torch") if any(map(_is_of_torch, feeds.values())) else None
    if torch is None:
        return GpuFeeds(inputs, 0, lambda tensor: tensor)
    return GpuFeeds(inputs, int(torch.cuda.current_stream(index).cuda_stream), torch.from_dlpack)


def _imported(ffi: Any, name: str, given: Any) -> Any:
    try:
        return ffi.from_dlpack(given)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"input {name!r} cannot be taken by DLPack: {error}") from error


def _is_of_torch(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "torch"
