"""ONNX element types as torch has them, and constants as tensors."""

import numpy as np
import onnx_ir as ir
import torch

# torch computes next to nothing with wider unsigned types.
DTYPES = {
    ir.DataType.FLOAT: torch.float32,
    ir.DataType.DOUBLE: torch.float64,
    ir.DataType.FLOAT16: torch.float16,
    ir.DataType.BFLOAT16: torch.bfloat16,
    ir.DataType.INT8: torch.int8,
    ir.DataType.INT16: torch.int16,
    ir.DataType.INT32: torch.int32,
    ir.DataType.INT64: torch.int64,
    ir.DataType.UINT8: torch.uint8,
    ir.DataType.BOOL: torch.bool,
}


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """A tensor of its own memory; bfloat16, which NumPy lacks, comes in the type that ml_dtypes adds to it."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())
