"""A network as calls of C functions on buffers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from math import prod

import numpy as np

from ptqc.codegen.c.constants import Constants

Shape = tuple[int, ...]
Order = tuple[int, ...]
# Axes that a structure of C has.
AXES = 4
# Of buffers, in bytes.
ALIGNMENT = 8


class Home(Enum):
    """Where a buffer lies."""

    ARENA = "arena"
    CALLER = "caller"  # inputs and outputs
    FLASH = "flash"
    STATE = "state"  # from one call to the next


@dataclass(eq=False)
class Buffer:
    """Memory of some values. name: of what it holds, for people; of an array of C unless it is in the arena."""

    name: str
    bytes: int
    home: Home = Home.ARENA


@dataclass(frozen=True)
class CTensor:
    """A value of the graph. shape: as in the graph; order: of its axes in memory, the outermost first."""

    buffer: Buffer
    shape: Shape
    dtype: str
    order: Order

    @property
    def size(self) -> int:
        """Elements."""
        return prod(self.shape)

    @property
    def steps(self) -> list[int]:
        """Elements from one to the next along each axis of the graph."""
        result, step = [0] * len(self.shape), 1
        for axis in reversed(self.order):
            result[axis] = step
            step *= self.shape[axis]
        return result

    @property
    def in_memory(self) -> Shape:
        """The shape with its axes as they are in memory."""
        return tuple(self.shape[axis] for axis in self.order)

    def is_ordered(self, order: Order) -> bool:
        """Whether its elements lie as if axes were in this order."""
        return self._moved(self.order) == self._moved(order)

    def _moved(self, order: Order) -> list[int]:
        return [axis for axis in order if self.shape[axis] > 1]

    def in_model(self, memory: np.ndarray) -> np.ndarray:
        """Elements as they lie in memory, in the shape of the graph."""
        return np.ascontiguousarray(memory.reshape(self.in_memory).transpose(np.argsort(self.order)))

    def to_memory(self, array: np.ndarray) -> np.ndarray:
        """The inverse of `in_model`."""
        return np.ascontiguousarray(array.reshape(self.shape).transpose(self.order))


def plain(rank: int) -> Order:
    """Axes as they are in the graph."""
    return tuple(range(rank))


def channels_last(rank: int) -> Order:
    """The axis of channels, which is the second, behind all others."""
    return (0, *range(2, rank), 1)


@dataclass(frozen=True)
class Place:
    """Memory at an offset in bytes from the beginning of a buffer."""

    buffer: Buffer
    offset: int = 0


# Arguments that are known once memory is planned: a structure of constants, and memory that a step needs meanwhile.
STRUCTURE, SCRATCH = "&structure", "scratch"
Argument = str | Place


@dataclass(eq=False)
class Step:
    """A call of the function of C in the file of its name.

    value, tensor: what the graph calls its result. overwrites: whether it may write to the memory of its first input.
    panels: how many rows it may unpack at a time, the fewest first; structure: its constants then; scratch: bytes that
    it needs then. products: multiplications. kinds: of packings that it unpacks. operator: of the graph.
    """

    function: str
    arguments: Sequence[Argument]
    reads: Sequence[Buffer]
    writes: Sequence[Buffer]
    value: str = ""
    tensor: CTensor | None = None
    overwrites: bool = False
    panels: Sequence[int] = (1,)
    structure: Callable[[int], str] | None = None
    scratch: Callable[[int], int] = lambda _: 0
    products: int = 0
    kinds: Sequence[str] = ()
    operator: str = ""


@dataclass(frozen=True)
class TimeRows:
    """How a value of a stream lies along time.

    axis: of time. stride: frames from one row to the next. late: rows in front of its first one; below 0, rows of
    padding that no call computes. tail: last rows of a window that read padding behind it, which `padded` adds.
    """

    axis: int
    stride: int = 1
    late: int = 0
    tail: int = 0
    padded: str = ""


@dataclass(frozen=True)
class Stream:
    """How a network takes frames. input: by name; frames: in a call; window: of the model.

    calls: until a window is complete; first: the first of them that gives outputs. skipped: frames in front of the
    first window. is_padded: whether windows see padding in front of the first frame. rows: of values by name.
    """

    input: str
    axis: int
    frames: int
    window: int
    calls: int
    first: int
    skipped: int
    is_padded: bool
    rows: Mapping[str, TimeRows]

    def new(self, rows: TimeRows) -> int:
        """Rows that a call adds to a value."""
        return self.frames // rows.stride

    def begin(self, rows: TimeRows) -> int:
        """How many rows before the new ones of a call its window begins."""
        return (self.calls - 1) * self.new(rows) - rows.late


@dataclass
class NetworkCalls:
    """inputs, outputs: in the order of the model, with the name of each there and the scale of its codes.

    states: memory that stays from one call to the next, with the byte that it begins with. stream: None where a call
    takes a whole window.
    """

    inputs: list["Terminal"] = field(default_factory=list)
    outputs: list["Terminal"] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    constants: Constants = field(default_factory=Constants)
    states: dict[Buffer, int] = field(default_factory=dict)
    stream: Stream | None = None

    @property
    def state_bytes(self) -> int:
        """Of memory that stays from one call to the next."""
        return sum(-(-buffer.bytes // ALIGNMENT) * ALIGNMENT for buffer in self.states)

    @property
    def products(self) -> int:
        """Multiplications of weights and activations in a run."""
        return sum(step.products for step in self.steps)


@dataclass(frozen=True)
class Terminal:
    """An input or output. codes: scale and zero point of codes; None for what the model has.

    value: what the lowered graph calls what is in it.
    """

    name: str
    tensor: CTensor
    value: str
    codes: tuple[float, int] | None = None


def collapsed(sizes: Sequence[int], *steps: Sequence[int]) -> tuple[list[int], list[list[int]]] | None:
    """Axes joined where all steps allow it, and filled up to AXES; None where more are left."""
    axes = [each for each in zip(sizes, *steps, strict=True) if each[0] > 1]
    joined: list[tuple[int, ...]] = []
    for axis in axes:
        size, *own = axis
        if joined and all(outer == step * size for outer, step in zip(joined[-1][1:], own, strict=True)):
            joined[-1] = (joined[-1][0] * size, *own)
        else:
            joined.append(axis)
    if len(joined) > AXES:
        return None
    filled = [(1, *(0 for _ in steps))] * (AXES - len(joined)) + joined
    size_list, *step_lists = map(list, zip(*filled, strict=True))
    return size_list, step_lists


def renamed(tensor: CTensor, **changes: object) -> CTensor:
    """The same memory as another tensor."""
    return replace(tensor, **changes)  # type: ignore[arg-type]
