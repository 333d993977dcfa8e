"""Faults of packing: the file is not the lowered graph."""

from typing import Any

import numpy as np
import onnx
from planting import DIFFER, TUNED, Changed, Fault, given

from ptqc.codegen.onnxruntime import constants, export
from ptqc.formats import codebook, planes
from ptqc.formats.entropy import Entropy
from ptqc.formats.sparse import Masked, SparseCodebook, TwoOfFour
from ptqc.formats.trellis import RowTrellis, Trellis

# Operators with integer kernels, and what those give.
KERNELS = {
    **dict.fromkeys(("AveragePool", "GlobalAveragePool", "LeakyRelu", "Sigmoid"), "integers"),
    **dict.fromkeys(("Gemm", "MatMul"), "real values"),
}


def planes_reversed(right: Any) -> Any:
    """The lowest bits in the widest plane."""

    def pack(index: np.ndarray, bits: int) -> Any:
        turned = np.zeros_like(index)
        for bit in range(bits):
            turned |= ((index >> bit) & 1) << (bits - 1 - bit)
        return right(turned, bits)

    return pack


def rounded_late(result: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """A digit fewer than the scales had when the weights were rounded to them."""
    return result[0] & 0xFE, result[1]


def nibbles_swapped(result: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    return tuple((plane << 4 | plane >> 4).astype(np.uint8) for plane in result)


def unsigned(result: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Indices taken for codes."""
    return {
        name: np.arange(array.size, dtype=np.int8) if array.dtype == np.int8 else array
        for name, array in result.items()
    }


def renamed_output(model: onnx.ModelProto) -> onnx.ModelProto:
    old = model.graph.output[0].name
    model.graph.output[0].name = "other"
    for node in model.graph.node:
        node.output[:] = ["other" if name == old else name for name in node.output]
        node.input[:] = ["other" if name == old else name for name in node.input]
    return model


def taken_for_a_default(name: str) -> Changed:
    return lambda right: lambda op_type, attribute: attribute.name == name or right(op_type, attribute)


def merged_by_size(right: Any) -> Any:
    """Initializers of one type and size taken for equal."""

    def merged(graph: Any, nodes: Any, *others: Any) -> list[onnx.TensorProto]:
        tensors: list[onnx.TensorProto] = right(graph, nodes, *others)
        first: dict[Any, str] = {}
        alias = {t.name: first.setdefault((t.data_type, tuple(t.dims)), t.name) for t in tensors}
        export.point_at(nodes, alias)
        return [t for t in tensors if alias[t.name] == t.name]

    return merged


def without_slope(model: onnx.ModelProto) -> onnx.ModelProto:
    for node in model.graph.node:
        if node.op_type == "LeakyRelu":
            del node.attribute[:]
    return model


def read_at_another_scale(op_type: str) -> Changed:
    """The last such operator gets twice the real values that its codes stand for."""

    def changed(model: onnx.ModelProto) -> onnx.ModelProto:
        graph = model.graph
        reader = [node for node in graph.node if node.op_type == op_type][-1]
        dequantize = next(node for node in graph.node if reader.input[0] in node.output)
        scale = next(tensor for tensor in graph.initializer if tensor.name == dequantize.input[1])
        graph.initializer.append(onnx.numpy_helper.from_array(2 * onnx.numpy_helper.to_array(scale), "twice"))
        dequantize.input[1] = "twice"
        return model

    return given(changed)


PACKING: dict[str, Fault] = {
    "bit planes in the wrong order": Fault(planes, "pack", planes_reversed, "image", TUNED),
    "nibbles swapped": Fault(planes, "pack", given(nibbles_swapped), "image", TUNED),
    "signed codes taken for unsigned": Fault(constants, "common", given(unsigned), "image", TUNED),
    "levels of a codebook rotated": Fault(
        codebook, "indices", given(lambda result: (result[0], np.roll(result[1], 1, axis=0))), "codebook", TUNED
    ),
    "halves of pairs swapped": Fault(
        codebook, "indices", given(lambda result: (result[0], result[1][:, ::-1].copy())), "pairs", TUNED
    ),
    "zeros at other places": Fault(
        Masked, "pack", given(lambda result: [np.roll(result[0], 1), *result[1:]]), "pruned", TUNED
    ),
    "another pattern of four": Fault(TwoOfFour, "mask_of", given(lambda result: 5 - result), "two of four", TUNED),
    "levels behind zeros rotated": Fault(
        SparseCodebook, "index_of", given(lambda result: (result[0], [np.roll(result[1][0], 1)])), "pruned", TUNED
    ),
    "states of a trellis rotated": Fault(
        Trellis, "pack", given(lambda result: [result[0], np.roll(result[1], 1), *result[2:]]), "trellis", TUNED
    ),
    "bits of a path reversed": Fault(
        Trellis, "pack", given(lambda result: [result[0][::-1].copy(), *result[1:]]), "trellis", TUNED
    ),
    "a path that begins elsewhere": Fault(
        Trellis,
        "parameters_of",
        given(lambda result: {**result, "h": [row - 1 for row in result["h"]]}),
        "trellis",
        TUNED,
    ),
    "paths of other rows": Fault(
        RowTrellis, "pack", given(lambda result: [np.roll(result[0], 1, axis=0), *result[1:]]), "table", TUNED
    ),
    "classes of other weights": Fault(
        Entropy, "pack", given(lambda result: [np.roll(result[0], 1), *result[1:]]), "entropy", TUNED
    ),
    "bits after classes reversed": Fault(
        Entropy, "pack", given(lambda result: [result[0], result[1][..., ::-1].copy(), *result[2:]]), "entropy", TUNED
    ),
    "codes of classes rotated": Fault(
        Entropy, "pack", given(lambda result: [*result[:3], np.roll(result[3], 1), result[4]]), "entropy", TUNED
    ),
    "unit of a bias lost": Fault(
        constants, "recovered_bias", given(lambda result: (result[0], 2 * result[1])), "image", DIFFER
    ),
    "scales rounded when they are stored": Fault(constants, "roots", given(rounded_late), "words", TUNED),
    "scales of the channels permuted": Fault(
        constants, "roots", given(lambda result: (np.roll(result[0], 1), result[1])), "words", TUNED
    ),
    "unequal constants merged": Fault(export, "shared_constants", merged_by_size, "pairs", TUNED),
    "transB taken for a default": Fault(export, "_is_default", taken_for_a_default("transB"), "pairs", DIFFER),
    "pads taken for a default": Fault(export, "_is_default", taken_for_a_default("pads"), "pairs", "does not load"),
    "pads of a mean taken for a default": Fault(
        export, "_is_default", taken_for_a_default("count_include_pad"), "gates", f"AveragePool .*{DIFFER}"
    ),
    "slope lost": Fault(export, "_model", given(without_slope), "gates", f"LeakyRelu .*{DIFFER}"),
    **{
        f"{op_type} of another scale": Fault(
            export, "_model", read_at_another_scale(op_type), "gates", f"{op_type} .*{what} differ"
        )
        for op_type, what in KERNELS.items()
    },
    "output renamed": Fault(export, "_model", given(renamed_output), "pairs", "interface"),
}
