"""Arrays of a safetensors file, mapped into memory: the system reads what is looked at, and may let go of it again."""

import json
import math
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

# https://huggingface.co/docs/safetensors: the length of the header, the header in JSON, the bytes of all tensors.
LENGTH = 8
DTYPES: Mapping[str, Any] = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
}


def mapped(path: Path) -> dict[str, np.ndarray]:
    """Arrays by name, not writable. Raises ValueError where the file is not what safetensors writes."""
    with path.open("rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return dict(_arrays(data, path))


def _arrays(data: memoryview, path: Path) -> Iterator[tuple[str, np.ndarray]]:
    start = LENGTH + int.from_bytes(data[:LENGTH], "little")
    header: dict[str, Any] = json.loads(bytes(data[LENGTH:start]))
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in DTYPES:
            raise ValueError(f"{path} holds {name!r} of type {entry['dtype']}; known are {', '.join(DTYPES)}")
        dtype, first = np.dtype(DTYPES[entry["dtype"]]), start + entry["data_offsets"][0]
        yield name, np.frombuffer(data, dtype, math.prod(entry["shape"]), first).reshape(entry["shape"])
