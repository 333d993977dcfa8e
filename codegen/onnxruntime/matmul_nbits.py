"""Weights in float that stay packed in memory, for operators of ONNX Runtime's own.

MatMulNBits: y = x Wᵀ with W of 4 or 8 bits, which the kernel reads as they lie. `accuracy_level` 4, which each node
states, lets it round x to 8 bits, block by block, as integer kernels do with scales of whole tensors.
GatherBlockQuantized: rows of a table of 4 or 8 bits, unpacked as they are picked.

A table that is also the matrix of a product is stored once: the bytes of both operators are the same, and only their
shapes differ. In memory each has its own, as the product arranges them for its kernel.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from ptqc.codegen.onnxruntime.constants import Share
from ptqc.codegen.onnxruntime.unpack_functions import Pick
from ptqc.formats import Format, Integer
from ptqc.formats.planes import pack_close
from ptqc.formats.scales import narrow, roots
from ptqc.ir.lowered import Lowered
from ptqc.ir.nodes import initial, input_of, integer, number, producer, required
from ptqc.ir.operators import Trait, named
from ptqc.ir.quantized_weight import QuantizedWeight

OPERATOR, PICKER, DOMAIN, VERSION = "MatMulNBits", "GatherBlockQuantized", "com.microsoft", 1
FORMATS = (Integer(4), Integer(8))
# Weights of a channel that share a scale of the operator, which all are that channel's: the most that divide them.
SIZES = (128, 64, 32, 16)
# Accuracy levels of the operator: it rounds what it reads to 8 bits, or not at all.
ACCURACY, EXACT = 4, 0
# Of each block, the operator that rounds what it reads keeps its scale once more and the sum of its codes: float32.
KEPT_OF_BLOCK, SCALE_BYTES = 2, 4
PARTS = ("scale", "every", "flat", "root", "square", "product")
PRODUCTS = named(Trait.LAYER) - {"Conv"}


def inside(output: str) -> str:
    """Name of a product before its bias is added."""
    return f"{output}/{PARTS[-1]}"


def block_size(form: Format, width: int) -> int | None:
    """Weights of a block, of channels of so many; None where the operator does not take them."""
    return next((size for size in SIZES if width % size == 0), None) if form in FORMATS else None


def product_bytes(solution: QuantizedWeight) -> int:
    """Bytes that a product takes once it is loaded, with what the kernel makes of its scales."""
    codes, blocks = _in_memory(solution)
    return codes + (1 + KEPT_OF_BLOCK) * SCALE_BYTES * blocks


def rows_bytes(solution: QuantizedWeight) -> int:
    """Bytes that a table takes of which rows are picked, once it is loaded."""
    codes, blocks = _in_memory(solution)
    return codes + SCALE_BYTES * blocks


def kept_bytes(node: onnx.NodeProto) -> int:
    """Bytes that the operator makes of the scales of its blocks when it is loaded, beside these."""
    inputs = {attribute.name: int(attribute.i) for attribute in node.attribute}
    if node.op_type != OPERATOR or inputs.get("accuracy_level") != ACCURACY:
        return 0
    return KEPT_OF_BLOCK * SCALE_BYTES * inputs["N"] * -(-inputs["K"] // inputs["block_size"])


def _in_memory(solution: QuantizedWeight) -> tuple[int, int]:
    """Bytes of the codes, and the number of blocks."""
    codes = int(solution.codes.size)
    size = block_size(solution.form, codes // int(solution.codes.shape[solution.axis]))
    assert size is not None
    return codes * solution.form.bits // 8, codes // size


@dataclass(frozen=True)
class BlockProduct:
    """A product that becomes the operator.

    x, output, bias: names of what it reads and makes. weight: the real value of its weight; codes: the initializer with
    its codes; stored: its numbers as the graph has them; is_turned: whether the weight's channels are columns.
    """

    x: str
    output: str
    bias: str | None
    weight: str
    codes: str
    stored: QuantizedWeight
    is_turned: bool

    @property
    def width(self) -> int:
        """Weights of a channel."""
        return int(self.stored.codes.size) // int(self.stored.codes.shape[self.stored.axis])

    @property
    def product(self) -> str:
        """Name of the product without its bias."""
        return self.output if self.bias is None else inside(self.output)

    def nodes(self, share: Share) -> list[onnx.NodeProto]:
        """What stands in its place. share: the name of a constant."""
        solution = self.stored.by_channel()
        codes, bits = solution.codes, solution.form.bits
        channels, width = codes.shape
        size = block_size(solution.form, width)
        assert size is not None
        every, flat = (f"{self.output}/{part}" for part in PARTS[1:3])
        blocks = width // size
        attributes = {"K": width, "N": channels, "bits": bits, "block_size": size, "accuracy_level": ACCURACY}
        inputs = [self.x, share(_packed(codes, bits, blocks)), flat]
        nodes = [
            *_scales_of_blocks(solution, blocks, self.output, share),
            helper.make_node("Reshape", [every, share(np.array([-1]))], [flat]),
            helper.make_node(OPERATOR, inputs, [self.product], domain=DOMAIN, **attributes),
        ]
        sums = [] if self.bias is None else [helper.make_node("Add", [self.product, self.bias], [self.output])]
        return [*nodes, *sums]


def picks_in_blocks(pick: Pick) -> bool:
    """Whether the operator takes the table that a node picks rows of."""
    return block_size(pick.solution.form, pick.solution.codes.shape[1]) is not None


def picked_in_blocks(pick: Pick, share: Share, *, is_multiplied: bool = False) -> list[onnx.NodeProto]:
    """What stands in the place of a node that picks rows. share: the name of a constant.

    is_multiplied: whether a product in blocks reads the table, too, and the file has it in that one's shape.
    """
    codes, bits = pick.solution.codes, pick.solution.form.bits
    size = block_size(pick.solution.form, codes.shape[1])
    assert size is not None
    blocks = codes.shape[1] // size
    attributes: dict[str, Any] = {"gather_axis": 0, "quantize_axis": 1, "block_size": size, "bits": bits}
    stored, flat = _packed(codes, bits, blocks), f"{pick.rows}/{PARTS[2]}"
    table = flat if is_multiplied else share(stored.reshape(len(codes), -1))
    turned = [helper.make_node("Reshape", [share(stored), share(np.array([0, -1]))], [flat])] if is_multiplied else []
    return [
        *_scales_of_blocks(pick.solution, blocks, pick.rows, share),
        *turned,
        helper.make_node(
            PICKER, [table, pick.places, f"{pick.rows}/{PARTS[1]}"], [pick.rows], domain=DOMAIN, **attributes
        ),
    ]


def _scales_of_blocks(solution: QuantizedWeight, blocks: int, output: str, share: Share) -> list[onnx.NodeProto]:
    """The scale of each channel for all of its blocks: (channels, blocks), folded when a file is loaded."""
    scale, every = (f"{output}/{part}" for part in PARTS[:2])
    return [
        *_scales(solution.scale, scale, output, share),
        helper.make_node("Expand", [scale, share(np.array([len(solution.codes), blocks]))], [every]),
    ]


def _scales(scales: np.ndarray, scale: str, output: str, share: Share) -> list[onnx.NodeProto]:
    """The nodes that make scales, a row for each channel, from what is stored of them. scale: what they are called."""
    stored, *unit = roots(scales) or (narrow(scales),)
    column = share(stored.reshape(-1, 1))
    if not unit:
        return [helper.make_node("Cast", [column], [scale], to=TensorProto.FLOAT)]
    root, square = (f"{output}/{part}" for part in PARTS[3:5])
    return [
        helper.make_node("Cast", [column], [root], to=TensorProto.FLOAT),
        helper.make_node("Mul", [root, root], [square]),
        helper.make_node("Mul", [square, share(unit[0])], [scale]),
    ]


def without_rounding(proto: onnx.ModelProto, products: Collection[str]) -> onnx.ModelProto:
    """A copy in which the operators that make these products read their inputs as they are."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for node in copy.graph.node:
        if node.op_type == OPERATOR and node.output[0] in products:
            next(a for a in node.attribute if a.name == "accuracy_level").i = EXACT
    return copy


def _packed(codes: np.ndarray, bits: int, blocks: int) -> np.ndarray:
    """Codes (channels, width) plus half of their range, as the operator takes them: (channels, blocks, bytes)."""
    index = (codes.astype(np.int16) + 2 ** (bits - 1)).astype(np.uint8)
    stored = index if bits == FORMATS[-1].bits else pack_close(index, bits)[0]
    return np.ascontiguousarray(stored.reshape(len(codes), blocks, -1))


def block_products(lowered: Lowered, tables: Collection[str] = ()) -> Iterator[BlockProduct]:
    """All that a lowered graph has: products in float alone read such weights.

    tables: codes of those that rows are picked of in blocks; weights of other tables stay as these are.
    """
    for value in (value for node in lowered.model.graph for value in node.outputs if value.name in lowered.weights):
        maker, readers = producer(value, "DequantizeLinear"), list(value.uses())
        if maker is None or value.name in lowered.layer_constants:
            continue
        axis = integer(maker, "axis", 1)
        if not readers or not all(place == 1 and _multiplies(node, axis) for node, place in readers):
            continue
        codes, scale = (str(source.name) for source in maker.inputs[:2] if source is not None)
        numbers = initial(lowered.model, codes), initial(lowered.model, scale)
        results = [
            _block_product(node, str(value.name), codes, QuantizedWeight(lowered.formats[codes], *numbers, axis))
            for node, _ in readers
        ]
        is_free = codes not in lowered.tied or lowered.tied[codes] in tables
        if is_free and block_size(results[0].stored.form, results[0].width) is not None:
            yield from results


def _multiplies(node: ir.Node, axis: int) -> bool:
    """Whether it multiplies rows with a matrix whose channels run along the axis, and no more than that."""
    if node.domain or node.op_type not in PRODUCTS:
        return False
    factors = (number(node, name, 1.0) for name in ("alpha", "beta"))
    is_plain = not integer(node, "transA", 0) and all(factor == 1.0 for factor in factors)
    return is_plain and axis == (0 if integer(node, "transB", 0) else 1)


def _block_product(node: ir.Node, weight: str, codes: str, stored: QuantizedWeight) -> BlockProduct:
    bias, is_turned = input_of(node, 2), not integer(node, "transB", 0)
    x, output = str(required(node.inputs[0]).name), str(node.outputs[0].name)
    return BlockProduct(x, output, None if bias is None else str(bias.name), weight, codes, stored, is_turned)
