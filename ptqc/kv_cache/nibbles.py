"""Two codes of 4 bits in a byte: the first half of a row low, the second half high. Real numbers hold them exactly."""

import numpy as np
import onnx_ir as ir

from ptqc.kv_cache.form import NodeDraft

HIGH = 16.0


def joined(codes: np.ndarray) -> np.ndarray:
    """(…, d) of whole numbers from 0 to 15 as (…, d / 2)."""
    low, high = np.split(codes, 2, axis=-1)
    return np.asarray(low + high * np.float32(HIGH))


def parted(pairs: np.ndarray) -> np.ndarray:
    """(…, d / 2) as (…, d)."""
    high = np.floor(pairs / np.float32(HIGH))
    return np.concatenate([pairs - high * np.float32(HIGH), high], -1)


def joining(nodes: NodeDraft, codes: ir.Value, size: int) -> ir.Value:
    """`joined` as nodes. size: d."""
    half, last, axis = nodes.whole(size // 2), nodes.whole(size), nodes.whole(-1)
    low, high = nodes.op("Slice", codes, nodes.whole(0), half, axis), nodes.op("Slice", codes, half, last, axis)
    return nodes.op("Add", low, nodes.op("Mul", high, nodes.real(HIGH)))


def parting(nodes: NodeDraft, pairs: ir.Value) -> ir.Value:
    """`parted` as nodes."""
    high = nodes.op("Floor", nodes.op("Div", pairs, nodes.real(HIGH)))
    low = nodes.op("Sub", pairs, nodes.op("Mul", high, nodes.real(HIGH)))
    return nodes.op("Concat", low, high, axis=-1)
