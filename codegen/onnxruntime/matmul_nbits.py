"""Weights in float that stay packed in memory: ONNX Runtime's own operators, and standard ones that it fuses to these.

MatMulNBits: y = x Wᵀ with W of 4 or 8 bits, which the kernel reads as they lie. `accuracy_level` 4, which each node
states, lets it round x to 8 bits, block by block, as integer kernels do with scales of whole tensors.
GatherBlockQuantized: rows of a table of 4 or 8 bits, unpacked as they are picked.

A table that is also the matrix of a product is stored once: the bytes of both operators are the same, and only their
shapes differ. In memory each has its own, as the product arranges them for its kernel.

DequantizeLinear of int4 or uint8, in blocks of W's columns, in front of a MatMul: from 1.25 on, ONNX Runtime makes the
same MatMulNBits of the two, with accuracy level 4, when it loads the file. It does so only where nothing else reads the
codes, their scales or zero points, where x comes from no DequantizeLinear, and where y goes to no QuantizeLinear, Relu
or Clip. Where a session adds up 8-bit weights exactly, it writes int8 in blocks as uint8, with a zero point that does
not fit.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from ptqc.codegen.onnxruntime.constants import Share
from ptqc.codegen.onnxruntime.float_layers import becomes_codes, comes_from_codes
from ptqc.codegen.onnxruntime.unpack_functions import Pick
from ptqc.formats import Format, Integer
from ptqc.formats.base import LOWEST_OPSET
from ptqc.formats.planes import pack_close
from ptqc.formats.scales import narrow, roots
from ptqc.ir.lowered import Lowered
from ptqc.ir.nodes import initial, input_of, integer, number, producer, required
from ptqc.ir.operators import Trait, clip_bounds, named
from ptqc.ir.quantized_weight import QuantizedWeight

OPERATOR, PICKER, DOMAIN, VERSION = "MatMulNBits", "GatherBlockQuantized", "com.microsoft", 1
FORMATS = (Integer(4), Integer(8))
# Types of their codes, what is added to these, and the opset of DequantizeLinear that takes them in blocks.
STORED: Mapping[int, tuple[type, int]] = {4: (ml_dtypes.int4, 0), 8: (np.uint8, 128)}
DEQUANTIZER, OPSET_OF_BLOCKS = "DequantizeLinear", 21
# The oldest ONNX Runtime that fuses the standard operators, whichever format it is and whether there is a bias.
FUSED_FROM = "1.25"
# An entry of a session: with which accuracy level it does.
LEVEL_OF_FUSED = "session.qdq_matmulnbits_accuracy_level"
# Weights of a channel that share a scale of the operator, which all are that channel's: the most that divide them.
SIZES = (128, 64, 32, 16)
# Accuracy levels of the operator: it rounds what it reads to 8 bits, or not at all.
ACCURACY, EXACT = 4, 0
# Of each block, the operator that rounds what it reads keeps its scale once more and the sum of its codes: float32.
LOADED_OF_BLOCK, SCALE_BYTES = 2, 4
PARTS = ("scale", "every", "flat", "root", "square", "zero", "product", "read", "sum")
PRODUCTS = named(Trait.LAYER) - {"Conv"}


def inside(output: str) -> tuple[str, ...]:
    """Names of a product before its bias is added, of what it reads, and of its sum before that is rounded."""
    return tuple(f"{output}/{part}" for part in PARTS[6:])


def block_size(form: Format, width: int) -> int | None:
    """Weights of a block, of channels of so many; None where the operator does not take them."""
    return next((size for size in SIZES if width % size == 0), None) if form in FORMATS else None


def product_bytes(solution: QuantizedWeight, kind: type["BlockProduct"]) -> int:
    """Bytes that a product of a kind takes once it is loaded, with what the kernel makes of its scales."""
    codes, blocks = _in_memory(solution)
    zeros = blocks if kind is DequantizedProduct and STORED[solution.form.bits][1] else 0
    return codes + (1 + LOADED_OF_BLOCK) * SCALE_BYTES * blocks + zeros


def rows_bytes(solution: QuantizedWeight) -> int:
    """Bytes that a table takes of which rows are picked, once it is loaded."""
    codes, blocks = _in_memory(solution)
    return codes + SCALE_BYTES * blocks


def loaded_scale_bytes(node: onnx.NodeProto) -> int:
    """Bytes that the operator makes of the scales of its blocks when it is loaded, beside these."""
    inputs = {attribute.name: int(attribute.i) for attribute in node.attribute}
    if node.op_type != OPERATOR or inputs.get("accuracy_level") != ACCURACY:
        return 0
    return LOADED_OF_BLOCK * SCALE_BYTES * inputs["N"] * -(-inputs["K"] // inputs["block_size"])


def _in_memory(solution: QuantizedWeight) -> tuple[int, int]:
    """Bytes of the codes, and the number of blocks."""
    codes = int(solution.codes.size)
    size = block_size(solution.form, codes // int(solution.codes.shape[solution.axis]))
    assert size is not None
    return codes * solution.form.bits // 8, codes // size


@dataclass(frozen=True, kw_only=True)
class BlockProduct:
    """A product that becomes the operator.

    x, output, bias: names of what it reads and makes. weight: the real value of its weight; codes: the initializer with
    its codes; stored: its numbers as the graph has them; is_turned: whether the weight's channels are columns.
    x_apart, y_apart: whether ONNX Runtime would take what makes x, or what reads y, for a part of the product.
    """

    x: str
    output: str
    bias: str | None
    weight: str
    codes: str
    stored: QuantizedWeight
    is_turned: bool
    x_apart: bool = False
    y_apart: bool = False

    # Whether tables of which rows are picked stay packed, too, and weights that several products or a table read.
    takes_tables: ClassVar[bool] = True
    operator: ClassVar[str] = OPERATOR
    opset: ClassVar[int] = LOWEST_OPSET

    @property
    def width(self) -> int:
        """Weights of a channel."""
        return int(self.stored.codes.size) // int(self.stored.codes.shape[self.stored.axis])

    @property
    def product(self) -> str:
        """Name of the product without its bias."""
        return self.output if self.bias is None else inside(self.output)[0]

    @property
    def source(self) -> str:
        """Name of the value whose maker tells the format of the weight."""
        return self.product

    def nodes(self, share: Share, own: Share) -> list[onnx.NodeProto]:  # noqa: ARG002
        """What stands in its place. share: the name of a constant; own: of one that nothing else may read."""
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


class DequantizedProduct(BlockProduct):
    """A product in standard operators, of which ONNX Runtime makes the operator when it loads a file.

    Max of one tensor, which is that tensor, keeps it apart from others.
    """

    takes_tables: ClassVar[bool] = False
    operator: ClassVar[str] = DEQUANTIZER
    opset: ClassVar[int] = OPSET_OF_BLOCKS

    @property
    def product(self) -> str:
        """Name of the product without its bias."""
        return self.output if self.bias is None and not self.y_apart else inside(self.output)[0]

    @property
    def source(self) -> str:
        """Name of the value whose maker tells the format of the weight."""
        return self.weight

    def nodes(self, share: Share, own: Share) -> list[onnx.NodeProto]:
        """What stands in its place. share: the name of a constant; own: of one that nothing else may read."""
        solution = self.stored.by_channel()
        size = block_size(solution.form, self.width)
        assert size is not None
        blocks, (dtype, zero) = self.width // size, STORED[solution.form.bits]
        every, zeros = f"{self.output}/{PARTS[1]}", f"{self.output}/{PARTS[5]}"
        product, read, total = inside(self.output)
        inputs = [own((np.ascontiguousarray(solution.codes.T).astype(np.int16) + zero).astype(dtype)), every]
        nodes = _scales_of_blocks(solution, blocks, self.output, share, own)
        if zero:
            shape = share(np.array([blocks, len(solution.codes)]))
            nodes.append(
                helper.make_node("Expand", [own(np.full((1, len(solution.codes)), zero, dtype)), shape], [zeros])
            )
            inputs.append(zeros)
        nodes.append(helper.make_node(DEQUANTIZER, inputs, [self.weight], axis=0, block_size=size))
        if self.x_apart:
            nodes.append(helper.make_node("Max", [self.x], [read]))
        nodes.append(helper.make_node("MatMul", [read if self.x_apart else self.x, self.weight], [self.product]))
        result = self.product
        if self.bias is not None:
            result = total if self.y_apart else self.output
            nodes.append(helper.make_node("Add", [product, self.bias], [result]))
        if self.y_apart:
            nodes.append(helper.make_node("Max", [result], [self.output]))
        return nodes


# By the operators that are asked for.
BLOCK_PRODUCTS: Mapping[str, type[BlockProduct]] = {"onnxruntime": BlockProduct, "dequantize": DequantizedProduct}


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


def _scales_of_blocks(
    solution: QuantizedWeight, blocks: int, output: str, share: Share, own: Share | None = None
) -> list[onnx.NodeProto]:
    """The scale of each channel for all of its blocks, folded when a file is loaded: (channels, blocks).

    own: takes what is stored of the scales where nothing else may read it; they are (blocks, channels) then.
    """
    scale, every = (f"{output}/{part}" for part in PARTS[:2])
    whole, scales = [len(solution.codes), blocks], solution.scale.reshape(-1, 1)
    if own is not None:
        whole, scales = whole[::-1], scales.T
    return [
        *_scales(scales, scale, output, share, own or share),
        helper.make_node("Expand", [scale, share(np.array(whole))], [every]),
    ]


def _scales(scales: np.ndarray, scale: str, output: str, share: Share, own: Share) -> list[onnx.NodeProto]:
    """The nodes that make scales from what is stored of them. scale: what they are called."""
    stored, *unit = roots(scales) or (narrow(scales),)
    array = own(stored)
    if not unit:
        return [helper.make_node("Cast", [array], [scale], to=TensorProto.FLOAT)]
    root, square = (f"{output}/{part}" for part in PARTS[3:5])
    return [
        helper.make_node("Cast", [array], [root], to=TensorProto.FLOAT),
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


def block_products(
    lowered: Lowered, kind: type[BlockProduct] = BlockProduct, tables: Collection[str] = ()
) -> Iterator[BlockProduct]:
    """All of a kind that a lowered graph has: products in float alone read such weights.

    tables: codes of those that rows are picked of in blocks; weights of other tables stay as these are.
    """
    for value in (value for node in lowered.model.graph for value in node.outputs if value.name in lowered.weights):
        maker, readers = producer(value, DEQUANTIZER), list(value.uses())
        if maker is None or value.name in lowered.layer_constants:
            continue
        axis = integer(maker, "axis", 1)
        if not readers or not all(place == 1 and _multiplies(node, axis) for node, place in readers):
            continue
        codes, scale = (str(source.name) for source in maker.inputs[:2] if source is not None)
        numbers = initial(lowered.model, codes), initial(lowered.model, scale)
        results = [
            _block_product(kind, node, str(value.name), codes, QuantizedWeight(lowered.formats[codes], *numbers, axis))
            for node, _ in readers
        ]
        is_free = codes not in lowered.tied or lowered.tied[codes] in tables
        if is_free and takes(kind, results[0].stored.form, results[0].width, len(readers)):
            yield from results


def takes(kind: type[BlockProduct], form: Format, width: int, readers: int) -> bool:
    """Whether products of a kind, so many of one weight, keep its channels of so many numbers packed."""
    return block_size(form, width) is not None and (kind.takes_tables or readers == 1)


def _multiplies(node: ir.Node, axis: int) -> bool:
    """Whether it multiplies rows with a matrix whose channels run along the axis, and no more than that."""
    if node.domain or node.op_type not in PRODUCTS:
        return False
    factors = (number(node, name, 1.0) for name in ("alpha", "beta"))
    is_plain = not integer(node, "transA", 0) and all(factor == 1.0 for factor in factors)
    return is_plain and axis == (0 if integer(node, "transB", 0) else 1)


def _block_product(
    kind: type[BlockProduct], node: ir.Node, weight: str, codes: str, stored: QuantizedWeight
) -> BlockProduct:
    x, output, bias = required(node.inputs[0]), node.outputs[0], input_of(node, 2)
    is_clipped = any(clip_bounds(reader) is not None for reader in output.consumers())
    return kind(
        x=str(x.name),
        output=str(output.name),
        bias=None if bias is None else str(bias.name),
        weight=weight,
        codes=codes,
        stored=stored,
        is_turned=not integer(node, "transB", 0),
        x_apart=comes_from_codes(x),
        y_apart=is_clipped or becomes_codes(output),
    )
