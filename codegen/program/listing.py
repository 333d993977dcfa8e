"""What is kept of a compiled program: enough to call its kernels one by one, without TVM's compiler."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from ptqc.codegen.program.accuracy import USUAL, Accuracy
from ptqc.codegen.program.layout import Frame, Layout
from ptqc.codegen.program.older import stated
from ptqc.codegen.program.program import Program, ProgramStep


@dataclass(frozen=True)
class Call:
    """One call of a kernel: names of what it reads and makes. value: what the lowered graph calls the latter.

    family, accuracy: of the kernel. constants: how many it takes behind its inputs. operations: products and sums of
    one sample, where these are what takes time. placed: inputs that lie in the memory of the output already, and are no
    arguments. within: real values that it computes on the way.
    """

    family: str
    kernel: str
    inputs: tuple[str, ...]
    output: str
    value: str
    constants: int
    operations: int = 0
    accuracy: Accuracy = USUAL
    placed: tuple[str, ...] = ()
    within: tuple[str, ...] = ()

    @classmethod
    def of(cls, step: ProgramStep) -> Self:
        """The call that a step becomes."""
        built = step.built
        return cls(
            built.family,
            built.name,
            step.inputs,
            step.output,
            step.value,
            len(built.constants),
            built.operations,
            built.accuracy,
            step.placed,
            step.within,
        )

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        """Inverse of `asdict`; earlier artifacts' entries are read as well."""
        entry = stated(entry)
        return cls(**{**_tuples(entry), "accuracy": Accuracy(**entry["accuracy"])})

    @property
    def arguments(self) -> tuple[str, ...]:
        """Inputs that the kernel takes."""
        return tuple(name for name in self.inputs if name not in self.placed)


@dataclass(frozen=True)
class Listing:
    """All calls in order, and the layout of every value."""

    calls: tuple[Call, ...]
    layouts: Mapping[str, Layout]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @classmethod
    def of(cls, program: Program) -> Self:
        """The listing of a program."""
        return cls(tuple(map(Call.of, program.steps)), program.layouts, program.inputs, program.outputs)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`."""
        calls = tuple(map(Call.from_json, document["calls"]))
        layouts = {name: _layout(entry) for name, entry in document["layouts"].items()}
        return cls(calls, layouts, tuple(document["inputs"]), tuple(document["outputs"]))

    def to_json(self) -> dict[str, Any]:
        """The document for the artifact."""
        return asdict(self)


def _layout(entry: Mapping[str, Any]) -> Layout:
    frame = entry.get("frame")
    return Layout(**{**_tuples(entry), "frame": frame and Frame(**_tuples(frame))})


def _tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
