"""What is kept of a compiled program: enough to call its kernels one by one, without TVM's compiler."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import numpy as np

from ptqc.codegen.program.layout import Frame, Layout
from ptqc.codegen.program.program import USUAL, Accuracy, Program, ProgramStep
from ptqc.runtime.lengths import Limit, bound, read, varies, written


@dataclass(frozen=True)
class Call:
    """One call of a kernel: names of what it reads and makes. value: what the lowered graph calls the latter.

    family, accuracy: of the kernel. constants: how many it takes behind its inputs. operations: products and sums of
    one sample, where these are what takes time. placed: inputs that lie in the memory of the output already, and are no
    arguments. within: real values that it computes on the way. lengths: those that it takes behind the output.
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
    lengths: tuple[str, ...] = ()

    @classmethod
    def of(cls, step: ProgramStep) -> Self:
        """The call that a step becomes."""
        built = step.kernel
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
            built.lengths,
        )

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        """Inverse of `asdict`."""
        return cls(**{**_tuples(entry), "accuracy": Accuracy(**entry["accuracy"])})

    @property
    def arguments(self) -> tuple[str, ...]:
        """Inputs that the kernel takes."""
        return tuple(name for name in self.inputs if name not in self.placed)


@dataclass(frozen=True)
class Listing:
    """All calls in order, and the layout of every value. lengths: what they are for one run, see `bound`. limits: of
    what follows from lengths.
    """

    calls: tuple[Call, ...]
    layouts: Mapping[str, Layout]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    lengths: Mapping[str, int] = field(default_factory=dict)
    limits: tuple[Limit, ...] = ()

    @classmethod
    def of(cls, program: Program) -> Self:
        """The listing of a program."""
        calls = tuple(map(Call.of, program.steps))
        return cls(calls, program.layouts, program.inputs, program.outputs, limits=program.limits)

    @property
    def summed_exactly(self) -> Self:
        """The same where no chip sums products in its own way, as an emulator does not."""
        calls = (replace(call, accuracy=replace(call.accuracy, of_chip=0.0)) for call in self.calls)
        return replace(self, calls=tuple(calls))

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`."""
        calls = tuple(map(Call.from_json, document["calls"]))
        layouts = {name: _layout(entry) for name, entry in document["layouts"].items()}
        limits = tuple(map(Limit.from_json, document.get("limits", ())))
        return cls(calls, layouts, tuple(document["inputs"]), tuple(document["outputs"]), limits=limits)

    def to_json(self) -> dict[str, Any]:
        """The document for the artifact."""
        layouts = {name: _of_layout(layout) for name, layout in self.layouts.items()}
        calls = [_of_call(call) for call in self.calls]
        limits = {"limits": [limit.to_json() for limit in self.limits]} if self.limits else {}
        return {"calls": calls, "layouts": layouts, "inputs": self.inputs, "outputs": self.outputs, **limits}

    def bound(self, inputs: Mapping[str, np.ndarray]) -> Self:
        """The listing where layouts have the sizes of a run. inputs: of that; may have more values."""
        lengths = self._lengths(inputs)
        if not lengths:
            return self
        layouts = {name: layout.sized(lengths) for name, layout in self.layouts.items()}
        return replace(self, layouts=layouts, lengths=lengths)

    def takes(self, inputs: Mapping[str, np.ndarray]) -> bool:
        """Whether inputs are within the limits."""
        lengths = self._lengths(inputs)
        return all(limit.allows(lengths) for limit in self.limits)

    def _lengths(self, inputs: Mapping[str, np.ndarray]) -> dict[str, int]:
        pairs = [(self.layouts[name].shape, inputs[name].shape) for name in self.inputs if name in inputs]
        return bound([(shape, sizes[len(sizes) - len(shape) :]) for shape, sizes in pairs if varies(shape)])


def _of_call(call: Call) -> dict[str, Any]:
    entry = asdict(call)
    return entry if call.lengths else {key: value for key, value in entry.items() if key != "lengths"}


# What fields of a layout are called in the document.
_NAMES = {"is_io": "outside", "row_major": "plain", "parent_buffer": "frame"}


def _of_layout(layout: Layout) -> dict[str, Any]:
    entry = {_NAMES.get(name, name): value for name, value in asdict(layout).items()}
    return {**entry, "shape": list(map(written, layout.shape))}


def _layout(entry: Mapping[str, Any]) -> Layout:
    fields = {name: entry[_NAMES.get(name, name)] for name in ("dtype", "is_io", "row_major", "parent_buffer")}
    parent = fields.pop("parent_buffer")
    return Layout(tuple(map(read, entry["shape"])), **fields, parent_buffer=parent and Frame(**_tuples(parent)))


def _tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
