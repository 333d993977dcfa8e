"""The geometry of a window that slides over a padded plane."""

from dataclasses import dataclass
from math import prod

import onnx_ir as ir


@dataclass(frozen=True)
class Window:
    """channels: of the input. size: rows and columns of the padded input. kernel, strides, dilations: by axis."""

    channels: int
    size: tuple[int, int]
    kernel: tuple[int, int] = (1, 1)
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)

    @property
    def output(self) -> tuple[int, int]:
        """Rows and columns of the output."""
        rows, columns = (
            (size - (kernel - 1) * dilation - 1) // stride + 1
            for size, kernel, stride, dilation in zip(self.size, self.kernel, self.strides, self.dilations, strict=True)
        )
        return rows, columns

    @property
    def products(self) -> int:
        """Taps of all output pixels."""
        found: int = prod(self.output) * prod(self.kernel)
        return found

    @property
    def is_pointwise(self) -> bool:
        """Whether every input pixel is one output pixel."""
        return self.kernel == (1, 1) and self.strides == (1, 1)


def slides(node: ir.Node) -> bool:
    """Whether a window slides over the node's first input, whose size is then one."""
    return "kernel_shape" in node.attributes
