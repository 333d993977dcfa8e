"""Activations as real numbers of fewer digits. In a graph, a node rounds to them and another goes back."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.formats.activations import ActivationFormat, ActivationParams
from ptqc.formats.base import LOWEST_OPSET, Format


@dataclass(frozen=True)
class Reader:
    """A layer in float that reads an activation.

    reads_pairs: whether it is a convolution that multiplies an even number of inputs. weight: the format of its weight;
    None where that is not decided yet.
    """

    reads_pairs: bool
    weight: Format | None = None


class FloatActivation(ActivationFormat):
    """Real numbers of fewer digits. opset: the lowest that has the nodes which round to them."""

    opset: ClassVar[int] = LOWEST_OPSET

    @abstractmethod
    def of_range(self, low: float, high: float) -> "FloatRounding":
        """Parameters of a site that was observed in this range."""

    @abstractmethod
    def gains(self, readers: Sequence["Reader"]) -> bool:
        """Whether rounding what these layers in float read, which are all that read it, makes one of them faster."""


class FloatRounding(ActivationParams):
    """How values of one site are rounded to real numbers of fewer digits."""

    format: FloatActivation

    @abstractmethod
    def nodes(self, value: ir.Value, constant: Callable[[np.ndarray], ir.Value]) -> tuple[ir.Node, ir.Node]:
        """The nodes that round a value and that go back to float32, with types of their outputs."""


def rounded_to(params: Mapping[str, ActivationParams]) -> dict[str, FloatActivation]:
    """The formats of those that stay real numbers."""
    return {name: one.format for name, one in params.items() if isinstance(one, FloatRounding)}
