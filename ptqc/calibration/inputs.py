"""What a model takes: its declared inputs, and the check of one calibration sample against them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import ml_dtypes
import numpy as np
import onnx_ir as ir

from ptqc.errors import CalibrationError
from ptqc.execution.onnxruntime import Feeds
from ptqc.ir.nodes import constant, integer, required, static
from ptqc.ir.operators import EVERY, Trait, known, named
from ptqc.ir.recorded import remembered
from ptqc.losses.words import says

# How many channels an image input has whose shape leaves them open, by the convolution that reads it.
#
# Exporters of vision transformers name every axis of the input, that of the channels too.

IMAGE_AXES = 4
CHANNELS = 1  # the axis of the channels, which convolutions want in front of height and width
ELEMENTWISE = named(Trait.AFFINE, Trait.COPIES)


def channels_of(value: ir.Value) -> int | None:
    """Channels that a convolution wants of a value with 4 axes, as it is or normalized; None where none reads it."""
    reached, waiting = {value}, _readers(value)
    while waiting:
        node, read = waiting.pop()
        if node.domain or node.graph is not value.graph:
            continue
        if node.op_type == "Conv" and node.inputs[0] is read:
            weight = static(node.inputs[1])
            if weight is not None and len(weight) == IMAGE_AXES:
                return weight[CHANNELS] * integer(node, "group", 1)
        elif node.op_type in ELEMENTWISE and (output := required(node.outputs[0])) not in reached:
            reached.add(output)
            waiting += _readers(output)
    return None


def _readers(value: ir.Value) -> list[tuple[ir.Node, ir.Value]]:
    """The nodes that read a value, the first one last."""
    return [(node, value) for node in reversed(value.consumers())]


# Whether an input says which positions are attended to, as the graph shows it.

SOFTMAXES = named(Trait.SOFTMAX)
STOPPING = named(Trait.LAYER, Trait.MEASURES)
# Inputs of fused attention, by place, that say what is attended to.
MASKED = {(operator.domain, operator.name): operator.masks for operator in EVERY if operator.masks}


def is_mask(value: ir.Value) -> bool:
    """Whether an input reaches a softmax, or the mask of an attention, and meets no layer."""
    reached, waiting = set[int](), [value]
    while waiting:
        for node, place in waiting.pop().uses():
            if node.graph is not value.graph or _is_parameter(node, place):  # a branch need not be taken
                continue
            if _is_masked(node, place):
                return True
            if node.op_type not in STOPPING:
                new = [output for output in node.outputs if id(output) not in reached]
                reached.update(map(id, new))
                waiting += new
    return False


def _is_masked(node: ir.Node, place: int) -> bool:
    softmax = not node.domain and node.op_type in SOFTMAXES
    return softmax or place in MASKED.get((node.domain, node.op_type), ())


def _is_parameter(node: ir.Node, place: int) -> bool:
    """Whether the operator reads it as a shape, as axes or as places of values."""
    result = known(node)
    return result is not None and (place in result.parameters or (result.name == "Gather" and place == 1))


# How many rows the tables have that an input of integers indexes, as tokens index an embedding.

# Operators that change nothing about which rows are meant.
MOVES = named(Trait.RESHAPES, Trait.COPIES)


def rows_of_tables(value: ir.Value) -> int | None:
    """Rows of the smallest constant table that the value indexes, directly or moved; None if it indexes none."""
    return min(_rows(value, value.graph), default=None)


def _rows(value: ir.Value, graph: ir.Graph | ir.Function | None) -> Iterator[int]:
    """Of tables that nodes of this graph read, and both branches of each If in it."""
    reached, waiting = {value}, [value]
    while waiting:
        read = waiting.pop()
        for node in read.consumers():
            if node.domain or node.graph is not graph:
                continue
            if node.op_type in MOVES and node.inputs[0] is read:
                if (output := required(node.outputs[0])) not in reached:
                    reached.add(output)
                    waiting.append(output)
            elif node.op_type == "Gather" and node.inputs[1] is read:
                table = constant(node.inputs[0])
                if table is not None:
                    yield table.shape[integer(node, "axis", 0)]
        if graph is not None and any(node.graph is not graph for node in read.consumers()):
            yield from _rows_of_branches(read, graph)


def _rows_of_branches(value: ir.Value, graph: ir.Graph | ir.Function) -> Iterator[int]:
    """Of the tables that both branches index, as in a decoder of two files in one, with a cache and without."""
    for node in graph:
        if node.op_type == "If" and not node.domain:
            branches = (attribute.as_graph() for attribute in node.attributes.values())
            result = [min(_rows(value, branch), default=None) for branch in branches]
            rows = [each for each in result if each is not None]
            if len(rows) == len(result):  # one branch alone need not be taken
                yield max(rows)


Dim = int | str | None

# Strings of any length, as NumPy's own type for text: it has bytes that can be written, where Python objects have not.
TEXT = np.dtype(np.str_)

# Models with one of these fill in what is missing, for which NaN stands.
FILL_GAPS = named(Trait.FILLS_GAPS)

NARROWED = {
    # NumPy's default float is float64, and images arrive as float32: nobody means another precision by that.
    np.dtype(np.float32): (np.dtype(np.float64),),
    np.dtype(np.float16): (np.dtype(np.float32), np.dtype(np.float64)),
    np.dtype(ml_dtypes.bfloat16): (np.dtype(np.float32), np.dtype(np.float64)),
}


@dataclass(frozen=True)
class InputSpec:
    """One declared input; a dimension is its size, its symbol, or None when the model says nothing.

    Channels of an image that the declaration leaves open are those that the convolution behind the input wants.
    rows: of the smallest table that an input of integers indexes, None if it indexes none. masks: whether it says which
    positions attention looks at. gaps: whether NaN may stand for a number that is missing.
    """

    name: str
    dtype: np.dtype
    shape: tuple[Dim, ...]
    rows: int | None = None
    masks: bool = False
    gaps: bool = False

    def __str__(self) -> str:
        return f"{self.name!r} {'str' if self.dtype == TEXT else self.dtype.name}{shape_text(self.shape)}"


def shape_text(shape: Sequence[Dim]) -> str:
    """`(N, 3, ?, 224)`, with NumPy's comma after a single dimension."""
    inner = ", ".join("?" if dim is None else str(dim) for dim in shape)
    return f"({inner},)" if len(shape) == 1 else f"({inner})"


def input_specs(model: ir.Model) -> tuple[InputSpec, ...]:
    """Inputs that a caller must feed: those without an initializer of the same name, and that are not recorded.

    Raises CalibrationError for an input that is not a tensor of numbers or strings of known rank.
    """
    gaps = any(node.op_type in FILL_GAPS for node in model.graph)
    left_out = {*model.graph.initializers, *remembered(model)}
    return tuple(_spec(value, gaps) for value in model.graph.inputs if value.name not in left_out)


def _spec(value: ir.Value, gaps: bool) -> InputSpec:
    where = f"model input {value.name!r}"
    if not isinstance(value.type, ir.TensorType) or value.dtype in (None, ir.DataType.UNDEFINED):
        raise CalibrationError(f"{where}: has type {value.type}, calibration needs a tensor")
    if value.shape is None:
        raise CalibrationError(f"{where}: declares no shape, so samples cannot be checked: declare one with --shape")
    dims = _dims(value, value.shape)
    dtype = TEXT if value.dtype == ir.DataType.STRING else value.dtype.numpy()
    rows = rows_of_tables(value) if dtype.kind in "iu" else None
    masks = dtype.kind in "iubf" and rows is None and is_mask(value)
    return InputSpec(str(value.name), dtype, dims, rows, masks, gaps)


def _dims(value: ir.Value, shape: ir.Shape) -> tuple[Dim, ...]:
    dims = [dim.value if isinstance(dim, ir.SymbolicDim) else dim for dim in shape]
    if len(dims) == IMAGE_AXES and not isinstance(dims[CHANNELS], int):
        dims[CHANNELS] = channels_of(value) or dims[CHANNELS]
    return tuple(dims)


def sample_name(number: int, file: str = "") -> str:
    """How messages name a sample: by its place, counted from 0 as in an array, and its file where it has one."""
    return f"samples[{number}] ({file})" if file else f"samples[{number}]"


def conform(sample: Mapping[str, object], inputs: Sequence[InputSpec], index: int, file: str = "") -> Feeds:
    """The sample's arrays in the model's input order and dtypes, C-contiguous, native byte order.

    A batch of one may lack its axis, which is added in front where the other axes fit the declared ones.
    index, file: see `sample_name`. Raises CalibrationError for a missing or unknown name, another dtype
    (only float64 -> float32 and float32/float64 -> a 16-bit float are converted), a rank or dimension that differs
    from the declared one, a symbol with two values within the sample, NaN that the model does not fill in, infinite
    values, and numbers of rows that a table does not have.
    """
    name = sample_name(index, file)
    _check_names(sample, inputs, name)
    feeds: Feeds = {}
    symbols: dict[str, tuple[int, str]] = {}
    for spec in inputs:
        where = f"{name}, input {spec.name!r}"
        array = _batched((as_text if spec.dtype == TEXT else as_array)(sample[spec.name], where), spec)
        _check_shape(array.shape, spec, where)
        _bind_symbols(array.shape, spec, where, symbols)
        feeds[spec.name] = _check_finite(_as_declared(array, spec, where), spec, where)
        _check_rows(feeds[spec.name], spec, where)
    return feeds


def fits(shape: tuple[int, ...], spec: InputSpec) -> bool:
    """Whether an array of this shape is one sample, of which a batch of one may lack its axis."""
    return _agrees(shape, spec.shape) or (_takes_one(spec) and _agrees(shape, spec.shape[1:]))


def _check_names(sample: Mapping[str, object], inputs: Sequence[InputSpec], where: str) -> None:
    names = [spec.name for spec in inputs]
    missing = [name for name in names if name not in sample]
    unknown = [name for name in sample if name not in names]
    if not missing and not unknown:
        return
    faults = [f"input {name!r} is missing" for name in missing] + [f"{name!r} is not an input" for name in unknown]
    takes = ", ".join(str(spec) for spec in inputs)
    raise CalibrationError(f"{where}: {', '.join(faults)}: give exactly the model's inputs: {takes}")


def as_array(value: object, where: str) -> np.ndarray:
    """A C-contiguous array in native byte order; CalibrationError, starting with `where`, if there is none."""
    try:
        if callable(detach := getattr(value, "detach", None)):  # a tensor of PyTorch, on whatever device
            value = detach().cpu()
        array = np.asarray(value, order="C")
    except Exception as error:  # __array__ of a foreign tensor type may raise anything
        raise CalibrationError(f"{where}: {type(value).__name__} does not convert to an array: {error}") from error
    if array.dtype == object:
        raise CalibrationError(f"{where}: {type(value).__name__} holds Python objects, expected a numeric array")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def as_text(value: object, where: str) -> np.ndarray:
    """A C-contiguous array of strings; CalibrationError, starting with `where`, for anything else."""
    array = np.asarray(value, order="C")
    if array.dtype.kind not in "UO" or not all(isinstance(item, str) for item in array.flat):
        raise CalibrationError(f"{where}: has dtype {array.dtype.name}, expected an array of str")
    return array.astype(f"=U{max(map(len, array.flat), default=1) or 1}")


def _batched(array: np.ndarray, spec: InputSpec) -> np.ndarray:
    """The sample with a batch axis of one in front where only that is missing."""
    return array[np.newaxis] if _takes_one(spec) and _agrees(array.shape, spec.shape[1:]) else array


def _takes_one(spec: InputSpec) -> bool:
    return bool(spec.shape) and (not isinstance(spec.shape[0], int) or spec.shape[0] == 1)


def _as_declared(array: np.ndarray, spec: InputSpec, where: str) -> np.ndarray:
    if array.dtype == spec.dtype or spec.dtype == TEXT:
        return array
    if array.dtype in NARROWED.get(spec.dtype, ()):
        with np.errstate(over="ignore"):  # an overflow becomes infinite, which the finite check reports
            return array.astype(spec.dtype)
    raise CalibrationError(
        f"{where}: has dtype {array.dtype.name}, expected {spec.dtype.name}: "
        f"convert it with .astype({spec.dtype.name!r}) if the values are meant so"
    )


def _check_finite(array: np.ndarray, spec: InputSpec, where: str) -> np.ndarray:
    if array.dtype.kind not in "fc" and array.dtype not in NARROWED:
        return array
    bad = int(np.count_nonzero(np.isinf(array) if spec.gaps else ~np.isfinite(array)))
    if bad:
        raise CalibrationError(
            f"{where}: {bad} of {array.size} values are NaN or infinite as {array.dtype.name}, "
            "expected finite values: repair or leave out this sample"
        )
    return array


def _check_rows(array: np.ndarray, spec: InputSpec, where: str) -> None:
    if spec.rows is None or not array.size:
        return
    bad = array[(array < -spec.rows) | (array >= spec.rows)]
    if bad.size:
        raise CalibrationError(
            f"{where}: holds {bad[0]}, and {bad.size} of {array.size} values lie outside of the table that they index: "
            f"it has {spec.rows} rows, so give 0 to {spec.rows - 1} (-{spec.rows} to -1 count from its end)"
        )


def _check_shape(numbers: tuple[int, ...], spec: InputSpec, where: str) -> None:
    if not _agrees(numbers, spec.shape):
        raise CalibrationError(
            f"{where}: has shape {numbers}, expected {shape_text(spec.shape)}: {_shape_advice(numbers, spec.shape)}"
        )


def _shape_advice(numbers: tuple[int, ...], expected: tuple[Dim, ...]) -> str:
    if len(numbers) + 1 == len(expected):
        return f"add the batch axis with array[numpy.newaxis], then {_shape_advice((1, *numbers), expected)}"
    if len(numbers) != len(expected):
        return f"give an array with {len(expected)} axes"
    if len(numbers) == 4:
        for axes, name in (((0, 3, 1, 2), "channels last"), ((0, 2, 3, 1), "channels first")):
            if _agrees([numbers[axis] for axis in axes], expected):
                return f"the data look {name}; use array.transpose{axes}"
    if numbers[1:] and _agrees(numbers[1:], expected[1:]):
        return (
            f"give {expected[0]} rows in each sample, or a multiple of them in a batch (drop_last=True of a DataLoader "
            "leaves an incomplete one out)"
        )
    return "resize, crop or pad the data to the declared size (of images: --resize and --crop)"


def _agrees(numbers: Sequence[int], expected: Sequence[Dim]) -> bool:
    return len(numbers) == len(expected) and all(
        not isinstance(dim, int) or dim == size for size, dim in zip(numbers, expected, strict=True)
    )


def _bind_symbols(numbers: tuple[int, ...], spec: InputSpec, where: str, symbols: dict[str, tuple[int, str]]) -> None:
    """Record the value of each symbol, or refuse a second value; symbols: name -> (value, input that set it)."""
    for size, dim in zip(numbers, spec.shape, strict=True):
        if not isinstance(dim, str):
            continue
        first, owner = symbols.setdefault(dim, (size, spec.name))
        if first != size:
            raise CalibrationError(
                f"{where}: has shape {numbers}, expected {shape_text(spec.shape)} with {dim} = {first} as in input "
                f"{owner!r}: give all inputs of one sample the same {dim}"
            )


# What the inputs of a model of texts are for: as its graph shows it, and where that says nothing, their names.

# Whole words of the names that exporters give.
MASKS = frozenset(["mask"])
TYPES = frozenset(["type", "types", "segment", "segments"])
PLACES = frozenset(["pos", "position", "positions"])
PASTS = frozenset(["past", "cache", "kv"])
CROSS = frozenset(["encoder", "cross"])
# Tables of kinds of tokens have no more rows.
FEW_KINDS = 4
SEQUENCE = 3  # axes of features in a row; a picture has one more


class InputRole(Enum):
    """What an input is for."""

    TOKENS = auto()
    MASK = auto()  # 1 where there is a token, 0 where there is padding
    TYPES = auto()  # which of two texts a token is of
    PLACES = auto()  # the number of each position
    PAST = auto()  # keys and values of earlier tokens
    FLAG = auto()  # whether the cache is read, for a model that takes it in either case
    HEARD = auto()  # what an encoder made, or keys and values of that: a sequence of another length than the tokens
    OTHER = auto()


def roles(inputs: Sequence[InputSpec]) -> dict[str, InputRole]:
    """The role of each input by name."""
    result = {spec.name: _role(spec, inputs) for spec in inputs}
    whole = [spec for spec in inputs if spec.dtype.kind in "iu" and result[spec.name] is InputRole.OTHER]
    most = max((spec.rows or 0 for spec in whole), default=0)
    tokens = [spec for spec in whole if (spec.rows or 0) == most]
    if len(tokens) == 1:
        result[tokens[0].name] = InputRole.TOKENS
    return result


def _role(spec: InputSpec, inputs: Sequence[InputSpec]) -> InputRole:
    if spec.dtype.kind == "f":
        if (len(spec.shape) == 2 and says(spec.name, MASKS)) or (spec.masks and _has_tokens(inputs)):
            return InputRole.MASK
        if all(isinstance(size, int) for size in spec.shape[1:]):
            return InputRole.OTHER
        if says(spec.name, PASTS) and not says(spec.name, CROSS):
            return InputRole.PAST
        is_sequence = len(spec.shape) == SEQUENCE or says(spec.name, CROSS)
        return InputRole.HEARD if is_sequence and _has_tokens(inputs) else InputRole.OTHER
    # What is called a position may reach a softmax as well: decoders compare positions to mask later tokens.
    if spec.dtype.kind in "iu" and says(spec.name, PLACES) and not says(spec.name, MASKS):
        return InputRole.PLACES
    if spec.masks or (spec.rows is None and says(spec.name, MASKS)):
        return InputRole.MASK
    if spec.dtype.kind == "b" and all(size == 1 for size in spec.shape) and says(spec.name, PASTS):
        return InputRole.FLAG
    if spec.dtype.kind not in "iu":
        return InputRole.OTHER
    return InputRole.TYPES if says(spec.name, TYPES) or _has_few_kinds(spec, inputs) else InputRole.OTHER


def _has_few_kinds(spec: InputSpec, inputs: Sequence[InputSpec]) -> bool:
    """Whether it indexes a small table beside a larger one, in a model whose positions can be masked."""
    largest = max(other.rows or 0 for other in inputs)
    return spec.rows is not None and spec.rows <= FEW_KINDS < largest and any(other.masks for other in inputs)


def _has_tokens(inputs: Sequence[InputSpec]) -> bool:
    """Whether some input indexes a table: without one, floats that reach a softmax are scores."""
    return any(spec.rows is not None for spec in inputs)
