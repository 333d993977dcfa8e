"""What is found of a library that ran in an emulator, in a process of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ptqc.codegen.program.verify import TensorComparison
from ptqc.execution.onnxruntime import Feeds


@dataclass(frozen=True)
class Emulated:
    """What was found. outcomes: of every run. outputs: of the library as a whole; none of a large network.

    cropped: the calls that computed a share of their output, by what they make.
    """

    outcomes: Sequence[Sequence[TensorComparison]]
    outputs: Sequence[Feeds]
    cropped: Mapping[str, float]
