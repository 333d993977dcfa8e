"""A network as calls of kernels."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ptqc.codegen.program.built import Built
from ptqc.codegen.program.layout import Layout
from ptqc.runtime.lengths import Length, Limit, Shape


@dataclass(frozen=True)
class ProgramStep:
    """One kernel of the network: names of the values it reads and of the one it makes.

    value: what the lowered graph calls the one it makes; a name of its own for copies and borders, which the graph
    lacks. placed: inputs that lie in the memory of the output already, and are no arguments of the kernel. within: real
    values that it computes on the way.
    """

    built: Built
    inputs: tuple[str, ...]
    output: str
    value: str
    placed: tuple[str, ...] = ()
    within: tuple[str, ...] = ()

    @property
    def arguments(self) -> tuple[str, ...]:
        """Inputs that the kernel takes."""
        return tuple(name for name in self.inputs if name not in self.placed)


@dataclass(frozen=True)
class Program:
    """All steps in order, and the layout of every value.

    names: what the model calls the outputs. sizes: shapes of inputs and outputs where the library takes one run of the
    model and no more; else the batch, of any size, is in front of a sample. fixed: inputs that have to be these.
    lengths: what sizes vary with. limits: of what follows from these.
    """

    steps: tuple[ProgramStep, ...]
    layouts: dict[str, Layout]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    names: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, Shape] = field(default_factory=dict)
    fixed: Mapping[str, np.ndarray] = field(default_factory=dict)
    lengths: tuple[Length, ...] = ()
    limits: tuple[Limit, ...] = ()
