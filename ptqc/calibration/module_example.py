"""What a PyTorch module takes, as calibration samples show it: an example for PyTorch's exporter."""

import inspect
import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ptqc.calibration.inputs import as_array
from ptqc.calibration.sources import LABELS, are_labels, npz_members
from ptqc.errors import CalibrationError, UsageError
from ptqc.frontend.in_memory import from_torch
from ptqc.utils.arguments import shown


def is_module(model: object) -> bool:
    """Whether it is a module of PyTorch, which is not imported for that."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def exported(module: Any, calibration: object) -> tuple[ir.Model, object]:
    """The module as a model, and the calibration data, of which an iterator may have given its first item.

    Arrays of a dict or an .npz belong to what `forward` calls so, all others follow its order. Raises UsageError where
    the data do not show what the module takes, and as `from_torch`.
    """
    first, calibration = _first_of(calibration)
    values = _arguments(module, first)
    return from_torch(module, tuple(map(_as_tensor, values))), calibration


def _first_of(calibration: object) -> tuple[object, object]:
    """A first sample or batch, and all data."""
    if isinstance(calibration, str | Path) and Path(calibration).suffix in (".npz", ".npy"):
        path = Path(calibration)
        try:
            stacked = npz_members(path) if path.suffix == ".npz" else np.load(path, mmap_mode="r")
        except (OSError, ValueError) as error:
            raise CalibrationError(f"cannot read calibration data {path}: {error}") from error
        return _first_row(stacked), calibration
    if hasattr(calibration, "__array__") or isinstance(calibration, Mapping):
        return _first_row(calibration), calibration
    if isinstance(calibration, str | Path) or not isinstance(calibration, Iterable):
        raise UsageError(
            f"model is a PyTorch module, and calibration data {shown(calibration)} do not show what it takes: give "
            "ptqc.from_torch(module, example)"
        )
    items = iter(calibration)
    first = next(items, None)
    if first is None:
        raise CalibrationError(f"the {type(calibration).__name__} holds no samples: give at least 2")
    return first, itertools.chain([first], items) if items is calibration else calibration


def _first_row(stacked: Any) -> object:
    if isinstance(stacked, Mapping):
        return {name: _first_row(array) for name, array in stacked.items()}
    return as_array(stacked, "the calibration data")[:1]


def _arguments(module: Any, first: object) -> Sequence[Any]:
    """What `forward` takes, in its order."""
    parameters = inspect.signature(module.forward).parameters
    if isinstance(first, Mapping):
        named = {name: value for name, value in first.items() if name in parameters or name != LABELS}
        if unknown := [name for name in named if name not in parameters]:
            raise UsageError(
                f"the calibration data have {', '.join(map(repr, unknown))}, and forward of {type(module).__name__} "
                f"takes {', '.join(parameters)}: give these names, or ptqc.from_torch(module, example)"
            )
        return [named[name] for name in parameters if name in named]
    values = list(first) if isinstance(first, tuple | list) else [first]
    several = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters.values())
    if not several and len(values) == len(parameters) + 1 and are_labels(values[-1]):
        return values[:-1]
    return values


def _as_tensor(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    array = as_array(value, "the first calibration sample")
    # As samples are read: NumPy's default float is float64, by which nobody means a precision.
    return torch.from_numpy(array.astype(np.float32) if array.dtype == np.float64 else array.copy())
