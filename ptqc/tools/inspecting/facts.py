"""What is known of a model without data, and how it is told."""

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ptqc.utils.text import magnitude, shorten, visible

LABEL, WIDTH, NAME, LISTED = 12, 100, 60, 8


@dataclass(frozen=True)
class Tensor:
    """An input or output. shape: sizes, symbols, None for what the model does not say. content: what it likely is."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None
    content: str = ""

    def __str__(self) -> str:
        sizes = "any shape" if self.shape is None else " x ".join(map(_size, self.shape))
        about = f": {self.content}" if self.content else ""
        return f"{shorten(visible(self.name), NAME)} ({self.dtype}, {visible(sizes) or 'one number'}){about}"


def _size(size: int | str | None) -> str:
    """As it is declared; formulas of other sizes, which shape inference makes, as "?"."""
    return "?" if size is None or (isinstance(size, str) and not re.fullmatch(r"[\w.:/-]+", size)) else str(size)


@dataclass(frozen=True)
class StaysFloat:
    """Operators that no option puts on integers, and why."""

    operator: str
    count: int
    reason: str


@dataclass(frozen=True)
class Compilable:
    """What is known of a model that compile takes.

    layers, parameters: of what is quantized. inner_layers: how many more are in branches and loops. macs:
    multiply-accumulates of one run of one sample outside of these; None where sizes are free. at_least: bytes that no
    compiled file is below. smallest: about those that the smallest file has at most. sensible: budgets to begin with,
    and their bytes. seconds: of one processor; memory: bytes; both rough.
    """

    layers: int
    inner_layers: int
    parameters: int
    macs: int | None
    at_least: int
    smallest: int
    sensible: Mapping[str, int]
    seconds: float | None
    memory: float
    stays_float: tuple[StaysFloat, ...]


@dataclass(frozen=True)
class Inspection:
    """What `ptqc inspect` finds.

    bytes: of the file, with its external data. found: None where compile would refuse the model. refusal: why it would,
    and what helps. notes: what reading and the normal form said.
    """

    path: str
    bytes: int
    opset: int | None
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    operators: Mapping[str, int]
    found: Compilable | None = None
    refusal: str | None = None
    notes: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """The facts as a JSON document."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [*self._head(), *(_of(self.found, self.bytes) if self.found is not None else ())]
        if self.refusal is not None:
            lines.append(("REFUSED", visible(self.refusal)))
        return "\n".join(
            textwrap.fill(f"{label:<{LABEL}}{said}", WIDTH, subsequent_indent=" " * LABEL, break_on_hyphens=False)
            for label, said in lines
        )

    def _head(self) -> Iterator[tuple[str, str]]:
        opset = f", opset {self.opset}" if self.opset is not None else ""
        yield "model", f"{visible(self.path)}: {self.bytes:,} bytes{opset}"
        for label, tensors in (("input", self.inputs), ("output", self.outputs)):
            yield from ((label, str(tensor)) for tensor in tensors)
        yield "operators", _counted(self.operators)


def _of(found: Compilable, size: int) -> Iterator[tuple[str, str]]:
    macs = "unknown, since some sizes are free" if found.macs is None else f"{magnitude(found.macs)}MACs"
    inner = f" and {found.inner_layers:,} in branches or loops" if found.inner_layers else ""
    counted = ", the inner ones not counted" if inner else ""
    yield "layers", f"{found.layers:,}{inner} with {found.parameters:,} weights; one run of one sample: {macs}{counted}"
    smallest = f"{found.smallest:,} bytes ({100 * found.smallest / size:.1f} %)"
    yield "smallest", f"between {found.at_least:,} and about {smallest}; a compile measures and tells the exact number"
    sensible = ", ".join(f"--budget {budget} ({count:,} bytes)" for budget, count in found.sensible.items())
    yield "sensible", sensible or "none: the graph's text is most of the file"
    memory = f"{found.memory / 1e9:.1f} GB of memory"
    known = f"roughly {_duration(found.seconds or 0)} of processor time and {memory}"
    yield (
        "compile",
        f"the time depends on free sizes or loops; roughly {memory}" if found.seconds is None else known,
    )
    for kind in found.stays_float:
        yield "stays float", f"{kind.count:,} {visible(kind.operator)}: {kind.reason}"
    if not found.stays_float:
        yield "stays float", "nothing has to; a compile leaves in float what would lose more than it saves time"


def _duration(seconds: float) -> str:
    unit, size = ("s", 1) if seconds < 90 else ("min", 60) if seconds < 5400 else ("h", 3600)
    return f"{seconds / size:.1f} {unit}" if unit == "h" else f"{seconds / size:.0f} {unit}"


def _counted(counts: Mapping[str, int]) -> str:
    listed = [f"{count:,} {visible(name)}" for name, count in list(counts.items())[:LISTED]]
    more = len(counts) - len(listed)
    return ", ".join([*listed, *([f"and {more} more kinds"] if more > 0 else [])]) or "none"
