"""A network as calls of kernels."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptqc.codegen.tvm.layout import Layout

if TYPE_CHECKING:  # TVM, which only the process that compiles loads
    from ptqc.codegen.tvm.families import Built


@dataclass(frozen=True)
class Step:
    """One kernel of the network: names of the values it reads and of the one it makes."""

    built: "Built"
    inputs: tuple[str, ...]
    output: str


@dataclass(frozen=True)
class Program:
    """All steps in order, and the layout of every value."""

    steps: tuple[Step, ...]
    layouts: dict[str, Layout]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
