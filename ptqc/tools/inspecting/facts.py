"""What is known of a model without data, and how it is told."""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from ptqc.calibration.inputs import input_specs
from ptqc.calibration.synthetic import drawn_shapes, stated_range
from ptqc.errors import CalibrationError
from ptqc.formats import Scaled
from ptqc.ir.layers import Layer, Weight
from ptqc.ir.nodes import infer_shapes, input_of
from ptqc.ir.operators import Trait, named
from ptqc.passes.quantize.measure_sensitivity import COMPUTE
from ptqc.passes.quantize.moment_stream import SMALL_BLOCK_BYTES
from ptqc.passes.quantize.solve_weights import products, solving_bytes
from ptqc.passes.reconstruct.reconstruct import WALK_BYTES, WALK_COMPUTE
from ptqc.utils.parallel import ROOM
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
    """What is known of a model that compile takes."""

    #: That are quantized.
    layers: int
    #: More of them in branches and loops.
    inner_layers: int
    #: Weights of these layers.
    parameters: int
    #: Multiply-accumulates of one run of one sample, without branches and loops; None where they are unknown.
    macs: int | None
    #: By name, the sizes that the model leaves free and that `macs`, `seconds` and `memory` are for.
    free_sizes: Mapping[str, int]
    #: Bytes that every compiled file has at least.
    at_least: int
    #: Bytes that the smallest file has at most, about.
    smallest: int
    #: Budgets to begin with, and their bytes.
    sensible: Mapping[str, int]
    #: Of one processor for a compile, roughly; None where `macs` are unknown.
    seconds: float | None
    #: Bytes that a compile holds, roughly.
    memory: float
    #: What computes in float whatever is asked for, and why.
    stays_float: tuple[StaysFloat, ...]


@dataclass(frozen=True)
class Inspection:
    """Facts about a model, and what compiling it takes."""

    path: str
    #: Of the file, with its external data.
    bytes: int
    #: None where the model imports none.
    opset: int | None
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    #: How many there are of each.
    operators: Mapping[str, int]
    #: None where compile would refuse the model.
    found: Compilable | None = None
    #: Why it would be refused, and what helps.
    refusal: str | None = None
    #: What reading and normalizing the model said.
    notes: tuple[str, ...] = field(default=())
    #: Files of external data that are not there, and not in `bytes`.
    missing: tuple[str, ...] = ()

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
        lacking = f" without its data, which are missing: {visible(', '.join(self.missing))}" if self.missing else ""
        yield "model", f"{visible(self.path)}: {self.bytes:,} bytes{lacking}{opset}"
        for label, tensors in (("input", self.inputs), ("output", self.outputs)):
            yield from ((label, str(tensor)) for tensor in tensors)
        yield "operators", _counted(self.operators)


def _of(compilable: Compilable, size: int) -> Iterator[tuple[str, str]]:
    sizes = ", ".join(f"{visible(name)} {size}" for name, size in compilable.free_sizes.items())
    at = f" at {sizes}" if sizes else ""
    macs = "unknown, since some sizes are free" if compilable.macs is None else f"{magnitude(compilable.macs)}MACs{at}"
    inner = f" and {compilable.inner_layers:,} in branches or loops" if compilable.inner_layers else ""
    counted = ", the inner ones not counted" if inner else ""
    yield (
        "layers",
        f"{compilable.layers:,}{inner} with {compilable.parameters:,} weights; one run of one sample: {macs}{counted}",
    )
    smallest = f"{compilable.smallest:,} bytes ({100 * compilable.smallest / size:.1f} %)"
    yield (
        "smallest",
        f"between {compilable.at_least:,} and about {smallest}; a compile measures and gives the exact number",
    )
    sensible = ", ".join(f"--budget {budget} ({count:,} bytes)" for budget, count in compilable.sensible.items())
    yield "sensible", sensible or "none: the graph's text is most of the file"
    memory = f"{compilable.memory / 1e9:.1f} GB of memory"
    cost = f"roughly {_duration(compilable.seconds or 0)} of processor time and {memory}{at}"
    yield (
        "compile",
        f"the time depends on free sizes or loops; roughly {memory}" if compilable.seconds is None else cost,
    )
    for kind in compilable.stays_float:
        yield "stays float", f"{kind.count:,} {visible(kind.operator)}: {kind.reason}"
    if not compilable.stays_float:
        yield "stays float", "nothing has to; a compile leaves in float what would lose more than it saves time"


def _duration(seconds: float) -> str:
    unit, size = ("s", 1) if seconds < 90 else ("min", 60) if seconds < 5400 else ("h", 3600)
    return f"{seconds / size:.1f} {unit}" if unit == "h" else f"{seconds / size:.0f} {unit}"


def _counted(counts: Mapping[str, int]) -> str:
    listed = [f"{count:,} {visible(name)}" for name, count in list(counts.items())[:LISTED]]
    more = len(counts) - len(listed)
    return ", ".join([*listed, *([f"and {more} more kinds"] if more > 0 else [])]) or "none"


# What an input likely is, and how it is prepared.

IMAGE_CHANNELS = (1, 3, 4)


def content(model: ir.Model, name: str) -> str:
    """What an input holds, in a few words; "" where nothing can be told."""
    try:
        spec = next((spec for spec in input_specs(model) if spec.name == name), None)
    except CalibrationError:
        return ""
    if spec is None:
        return ""
    if spec.dtype == np.bool_ or "mask" in name.lower():
        return "a mask"
    if spec.dtype.kind in "iu" and len(spec.shape) <= 2:
        return "token ids or other indices"
    axis = next((axis for axis in (1, 3) if len(spec.shape) == 4 and spec.shape[axis] in IMAGE_CHANNELS), None)
    if axis is not None:
        return _image(next(value for value in model.graph.inputs if value.name == name), axis, spec.shape[axis])
    return "sound or another signal" if spec.dtype.kind == "f" and _is_long(spec.shape) else ""


def _image(value: ir.Value, axis: int, channels: int | str | None) -> str:
    kind = f"an image of {channels} channel{'' if channels == 1 else 's'}, channels {'first' if axis == 1 else 'last'}"
    result = stated_range(value)
    if result is None:
        # A spectrogram has the shape of a picture, too, and comes as arrays.
        return (
            f"{kind}; the graph does not say how pixels are scaled: for files of images give the --scale, --mean and "
            "--std of its training; arrays (.npz) are taken as they are"
        )
    return f"{kind}; {result.description}"


def _is_long(shape: tuple[int | str | None, ...]) -> bool:
    """Whether the last axis is of the length of a signal."""
    return len(shape) in (2, 3) and isinstance(shape[-1], int) and shape[-1] >= 4096


# What a compile will roughly take: whether minutes or hours, no more.
#
# seconds of one processor = START + EACH · weights + products of solving / SOLVED + (those of running / RAN) ^ DENSER
# bytes = PROGRAM + COPIES · weights in float32 + what a walk holds of activations: HELD · products, up to its limit
#
# Of a model beyond memory, bytes = PROGRAM + the most of its phases: a block of second moments with the weights that
# are solved at a time; what a walk holds; FILED bytes for each weight while the file is verified.

# Seconds in any case and for each weight, and products per second; fitted to 12 compiles of benchmarks/figures, of
# which 10 are within a factor of 1.5. Networks with more products have larger convolutions, whose products are faster.
START, EACH, SOLVED, RAN, DENSER = 4.0, 0.3, 1e10, 4e8, 0.6
HELD = 5
# How often a calibration sample is run, from the observation to the comparison with float.
RUNS = 10
# Draws that reconstruction walks with.
WALKS = 3
PROGRAM, COPIES, FILED = 350e6, 6, 1


@dataclass(frozen=True)
class Effort:
    """Seconds of one processor, and bytes of memory; both rough. seconds: None where the products are not known."""

    seconds: float | None
    memory: float


def effort(
    weights: Sequence[Weight], forms: Sequence[Scaled], macs: int | None, samples: int, *, in_files: bool = False
) -> Effort:
    """Time and memory of a compile with this many samples.

    macs: products of one run of one sample. in_files: whether the model is beyond memory.
    """
    elements = sum(weight.size for weight in weights)
    walk = WALK_BYTES if macs is None else min(WALK_BYTES, HELD * macs)
    memory = PROGRAM + 4 * COPIES * elements + walk
    if in_files:
        largest = max((solving_bytes(weight, forms, in_files=True) for weight in weights), default=0)
        memory = PROGRAM + max(SMALL_BLOCK_BYTES + max(largest, min(2 * largest, ROOM)), walk, FILED * elements)
    if macs is None:
        return Effort(None, memory)
    ran = min(COMPUTE, len(weights) ** 2 * 2.0 * macs) + RUNS * samples * macs
    ran += WALKS * min(WALK_COMPUTE, float(samples * macs))
    solving = sum(products(weight, forms) for weight in weights)
    return Effort(START + EACH * len(weights) + solving / SOLVED + (ran / RAN) ** DENSER, memory)


# Multiply-accumulates of one run, from the shapes that the graph declares or that follow from them.

RECURRENT = named(Trait.RECURRENT)


def products_of_a_run(model: ir.Model, layers: Sequence[Layer]) -> int | None:
    """Products of one sample: of layers, of recurrent operators, and of matrices that are both computed.

    None where one of them has free sizes other than the batch, the first axis (of what recurrent operators read, the
    second one).
    """
    of_layers, result = {layer.name: layer for layer in layers}, list[int | None]()
    for node in model.graph:
        output = node.outputs[0]
        if layer := of_layers.get(str(output.name)):
            result.append(_product(output.shape, layer.width))
        elif node.op_type in RECURRENT:
            result.append(_recurrent(node))
        elif node.op_type == "MatMul":
            summed = _last(input_of(node, 0))
            result.append(None if summed is None else _product(output.shape, summed))
    return sum(each for each in result if each is not None) if None not in result else None


def products_at_drawn_sizes(model: ir.Model, layers: Sequence[Layer]) -> tuple[int | None, dict[str, int]]:
    """The same at the sizes of generated samples where the model leaves some free, with these sizes but the batch's."""
    try:
        shapes = drawn_shapes(model)
    except CalibrationError:
        return None, {}
    bound, sizes = model.clone(), dict[str, int]()
    for value in bound.graph.inputs:
        if value.shape is None or str(value.name) not in shapes:
            continue
        drawn = shapes[str(value.name)]
        for axis, (dim, size) in enumerate(zip(value.shape, drawn, strict=True)):
            if not isinstance(dim, int):
                sizes.setdefault(dim.value or f"axis {axis} of {value.name}", size if axis else 0)
        value.shape = ir.Shape(drawn)
    for value in bound.graph.outputs:
        if value.shape is not None:
            dims = [dim if isinstance(dim, int) else sizes.get(dim.value or "") or dim for dim in value.shape]
            value.shape = ir.Shape(dims)
    infer_shapes(bound)
    macs = products_of_a_run(bound, layers)
    return macs, {} if macs is None else {name: size for name, size in sizes.items() if size}


def _product(shape: ir.Shape | None, summed: int, batch: int = 0) -> int | None:
    """Products of an output of this shape, each number of which is a sum of so many. batch: its axis, which counts as 1
    where it is free.
    """
    if shape is None or not len(shape):
        return None
    sizes = [1 if axis == batch and not isinstance(size, int) else size for axis, size in enumerate(shape)]
    known = [size for size in sizes if isinstance(size, int)]
    return prod(known) * summed if len(known) == len(sizes) else None


def _recurrent(node: ir.Node) -> int | None:
    """Every step multiplies both matrices, of each direction, with the input and with the state before."""
    x, *matrices = (input_of(node, place) for place in range(3))
    if x is None or x.shape is None:
        return None
    by_batch = "layout" in node.attributes and node.attributes["layout"].as_int() == 1
    steps = _product(ir.Shape(list(x.shape)[:2]), 1, 0 if by_batch else 1)
    weights = [None if value is None or value.shape is None else _product(value.shape, 1, -1) for value in matrices]
    known = [size for size in weights if size is not None]
    return None if steps is None or len(known) < len(weights) else steps * sum(known)


def _last(value: ir.Value | None) -> int | None:
    """The size of the last axis, None where it is free."""
    last = value.shape[-1] if value is not None and value.shape is not None and len(value.shape) else None
    return last if isinstance(last, int) else None
