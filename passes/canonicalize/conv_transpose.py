"""Transposed convolutions, which have no integer kernel, as convolutions where that is exact.

Kernel equal to stride: no two windows overlap, so each input position gives its own r x r block: a 1x1 convolution to
C r^2 channels, then DepthToSpace. Stride 1: a convolution with the kernel turned by half a circle.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.ir.nodes import (
    add_constant,
    constant,
    input_of,
    insert_before,
    integer,
    integers,
    nodes_of,
    replace_node,
    text,
    unique_name,
)
from ptqc.notes import Level, Note
from ptqc.passes.base import Effect, Probed, Result


@dataclass(frozen=True)
class ConvTransposeToConv:
    """Rewrite each ConvTranspose that an ordinary convolution can compute."""

    name: ClassVar[str] = "conv-transpose"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, probed: Probed) -> Result[Probed]:
        """One note for each ConvTranspose."""
        model = probed.model
        notes = []
        for node in nodes_of(model, "ConvTranspose"):
            subject = node.outputs[0].name or ""
            site = _Site.of(node)
            if site is None:
                reason = "stays float: its weight is not constant, or its padding depends on the output's size"
                notes.append(Note(self.name, subject, reason, Level.SKIPPED))
            elif site.is_blockwise():
                _to_blocks(model, node, site)
                notes.append(Note(self.name, subject, "kernel equals stride: now Conv 1x1 and DepthToSpace"))
            elif site.is_dense():
                _to_flipped(model, node, site)
                notes.append(Note(self.name, subject, "stride 1: now Conv with the kernel flipped"))
            else:
                reason = f"stays float: kernel {site.kernel}, strides {site.strides}, pads {site.pads}"
                notes.append(Note(self.name, subject, reason, Level.SKIPPED))
        return probed.rewritten(notes)


@dataclass(frozen=True)
class _Site:
    """A ConvTranspose; weight [groups, inputs per group, outputs per group, *kernel]."""

    weight: np.ndarray
    bias: np.ndarray | None
    kernel: list[int]
    strides: list[int]
    pads: list[int]
    dilations: list[int]
    extra: list[int]

    @classmethod
    def of(cls, node: ir.Node) -> "_Site | None":
        weight, bias = constant(input_of(node, 1)), constant(input_of(node, 2))
        if weight is None or (input_of(node, 2) is not None and bias is None):
            return None
        if "output_shape" in node.attributes or text(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
            return None
        kernel = list(weight.shape[2:])
        ones, zeros = [1] * len(kernel), [0] * len(kernel)
        return cls(
            weight.reshape(integer(node, "group", 1), -1, *weight.shape[1:]),
            bias,
            kernel,
            integers(node, "strides", ones),
            integers(node, "pads", zeros * 2),
            integers(node, "dilations", ones),
            integers(node, "output_padding", zeros),
        )

    def is_blockwise(self) -> bool:
        """Two axes, kernel and stride one square, nothing padded."""
        square = len(self.kernel) == 2 and self.kernel[0] == self.kernel[1] > 1 and self.strides == self.kernel
        return square and not any(self.pads) and not any(self.extra) and set(self.dilations) == {1}

    def is_dense(self) -> bool:
        """Stride 1 and no more cropped than the turned kernel's padding makes up for."""
        return set(self.strides) == {1} and not any(self.extra) and all(pad >= 0 for pad in self.turned_pads())

    def turned_pads(self) -> list[int]:
        """Pads of the equivalent convolution."""
        extents = [(size - 1) * step for size, step in zip(self.kernel, self.dilations, strict=True)]
        return [extent - pad for extent, pad in zip(extents * 2, self.pads, strict=True)]


def _to_blocks(model: ir.Model, node: ir.Node, site: _Site) -> None:
    name, block = node.outputs[0].name, site.kernel[0]
    groups, inputs, outputs = site.weight.shape[:3]
    # DepthToSpace in CRD mode reads channel (c, i, j) of the convolution as position (i, j) of block c.
    weight = site.weight.transpose(0, 2, 3, 4, 1).reshape(groups * outputs * block * block, inputs, 1, 1)
    values = [node.inputs[0], add_constant(model, np.ascontiguousarray(weight), f"{name}_weight")]
    if site.bias is not None:
        values.append(add_constant(model, np.repeat(site.bias, block * block), f"{name}_bias"))
    attributes = {"group": groups, "kernel_shape": [1, 1]}
    blocks = insert_before(node, "Conv", values, attributes, name=unique_name(model.graph, f"{name}_blocks"))
    replace_node(node, "DepthToSpace", [blocks], {"blocksize": block, "mode": "CRD"})


def _to_flipped(model: ir.Model, node: ir.Node, site: _Site) -> None:
    groups, inputs, outputs = site.weight.shape[:3]
    swapped = site.weight.swapaxes(1, 2).reshape(groups * outputs, inputs, *site.kernel)
    turned = np.ascontiguousarray(np.flip(swapped, axis=tuple(range(2, swapped.ndim))))
    weight = add_constant(model, turned, f"{node.outputs[0].name}_weight")
    attributes = {
        "group": groups,
        "kernel_shape": site.kernel,
        "dilations": site.dilations,
        "pads": site.turned_pads(),
    }
    replace_node(node, "Conv", [node.inputs[0], weight, *node.inputs[2:3]], attributes)
