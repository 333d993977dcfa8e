"""Walking through a graph node by node over a fixed set of samples, holding only the values still needed.

Two walks side by side (float and quantized) give a layer the inputs it will really see.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from math import ceil, sqrt
from threading import Lock

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from ptqc.errors import ModelError
from ptqc.execution.onnxruntime import Feeds, open_proto, session_options, tensor_message
from ptqc.execution.tensors import WALK_MEMORY, Bounded, Compressed, Held, real
from ptqc.ir.external import SpilledTensors
from ptqc.ir.protos import reads
from ptqc.utils.lazy import Lazy
from ptqc.utils.parallel import in_order, processors

Values = dict[str, np.ndarray]
# How a value is held from when it is computed, given its name.
Keep = Callable[[str, np.ndarray], Held]
# Looks at what a node, by its place, made of a batch, by its number: inputs and outputs by name.
Check = Callable[[int, int, Mapping[str, np.ndarray], Mapping[str, np.ndarray]], None]
EMPTY = np.empty(0, np.float32)
# Batches that are worked on at a time: each has its values in float32.
MOST_WORKERS = 8


def as_it_is(_name: str, array: np.ndarray) -> np.ndarray:
    """Keeps a value unchanged."""
    return array


def unchecked(_place: int, _batch: int, _inputs: Mapping[str, np.ndarray], _outputs: Mapping[str, np.ndarray]) -> None:
    """Takes everything as it comes."""


class Slicer:
    """Cuts runnable pieces out of a model: consecutive nodes with whatever they need."""

    def __init__(self, model: ir.Model) -> None:
        self.nodes: list[onnx.NodeProto] = [ir.serde.serialize_node(node) for node in model.graph]
        self.reads: list[set[str]] = [reads(node) for node in self.nodes]
        self.outputs: list[str] = [str(value.name) for value in model.graph.outputs]
        # What shapes and types the model states of values: arrays do not tell which of their axes are free.
        self._stated = {str(value.name): value for value in _values(model)}
        # Messages are made of them where a piece reads them: all together would be a copy of the model.
        self._initializers = {name: value.const_value for name, value in model.graph.initializers.items()}
        self._opsets = [onnx.helper.make_opsetid(*item) for item in model.opset_imports.items()]
        self._ir_version = model.ir_version

    def is_constant(self, name: str) -> bool:
        """Whether a value is an initializer."""
        return name in self._initializers

    def constant(self, name: str) -> np.ndarray | None:
        """The values of an initializer; None for any other value."""
        tensor = self._initializers.get(name)
        return None if tensor is None else tensor.numpy()

    def needed(self, first: int, outputs: Iterable[str]) -> list[int]:
        """Indices of the nodes from `first` on that the outputs depend on."""
        wanted, indices = set(outputs), []
        for index in range(len(self.nodes) - 1, first - 1, -1):
            if wanted.intersection(self.nodes[index].output):
                indices.append(index)
                wanted |= self.reads[index]
        return indices[::-1]

    def read_by(self, indices: Sequence[int]) -> list[str]:
        """Activations that some nodes read and do not make."""
        read = set().union(*(self.reads[i] for i in indices))
        return [name for name in sorted(read - self.outputs_of(indices)) if not self.is_constant(name)]

    def outputs_of(self, indices: Sequence[int]) -> set[str]:
        """Values that some nodes make."""
        return {name for i in indices for name in self.nodes[i].output}

    def session(
        self,
        indices: Sequence[int],
        inputs: Mapping[str, Held],
        outputs: Sequence[str],
        constants: Mapping[str, np.ndarray] | None = None,
    ) -> ort.InferenceSession:
        """A session on one thread for some nodes; inputs give types and ranks, constants replace initializers."""
        constants = constants or {}
        spilled = SpilledTensors()  # the session keeps them mapped
        graph = onnx.GraphProto(name="slice")
        graph.node.extend(self.nodes[i] for i in indices)
        read = set().union(*(self.reads[i] for i in indices))
        for name in sorted(read.intersection(self._initializers)):
            replaced = constants.get(name)
            tensor = self._initializers[name]
            if replaced is not None and isinstance(tensor, ir.ExternalTensor):
                graph.initializer.append(spilled.make(name, replaced))
            elif replaced is not None:
                graph.initializer.append(onnx.numpy_helper.from_array(replaced, name))
            elif tensor is not None:
                graph.initializer.append(tensor_message(tensor, name))
        for name in sorted(read.intersection(inputs)):
            graph.input.append(_value_info(name, inputs[name], self._stated.get(name)))
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
        proto = onnx.ModelProto(ir_version=self._ir_version, graph=graph, opset_import=self._opsets)
        return open_proto(proto, session_options(threads=1))


def _values(model: ir.Model) -> Iterator[ir.Value]:
    yield from model.graph.inputs
    for node in model.graph:
        yield from node.outputs


def _value_info(name: str, value: object, stated: ir.Value | None) -> onnx.ValueInfoProto:
    """The type of a value at hand, by what the model states of it where the value does not tell.

    Raises ModelError where neither does.
    """
    if isinstance(value, np.ndarray | Compressed):
        return onnx.helper.make_tensor_value_info(name, _type_of(value), _sizes(value.shape, stated))
    if isinstance(value, list) and value:
        return onnx.helper.make_tensor_sequence_value_info(name, _type_of(value[0]), None)
    if stated is None or stated.type is None:
        raise ModelError(f"{name!r} is an empty sequence or an optional without a value, and the model states no type")
    return ir.serde.serialize_value(stated)


def _sizes(shape: Sequence[int], stated: ir.Value | None) -> list[int | None]:
    """The sizes of an array's axes that the model fixes.

    Shape inference of ONNX Runtime needs some: it takes a vector of unknown length for an empty one, and the width of
    an Attention's queries for 0.
    """
    known = (None,) * len(shape) if stated is None or stated.shape is None else tuple(stated.shape)
    if len(known) != len(shape):
        return [None] * len(shape)
    return [size if size == fixed else None for size, fixed in zip(shape, known, strict=True)]


def _type_of(array: Held) -> int:
    return onnx.helper.np_dtype_to_tensor_dtype(array.dtype)


class Walk:
    """One stream of values through a graph.

    batches: the feeds, one dict per batch. values: name -> one array per batch, for what is still needed.
    constants: replaced initializers. keep: how values are held, and with that what the nodes behind them see.
    check: sees all values before they are held. bounded: which values are in memory, where walks share the room for
    them; the others are in files.
    workers: batches that are worked on at a time, 0: as many as there are processors. Each is worked on by one thread,
    since the last bits of what ONNX Runtime computes may depend on the number of threads of a session.
    """

    def __init__(
        self,
        slicer: Slicer,
        batches: Sequence[Feeds],
        constants: Mapping[str, np.ndarray] | None = None,
        keep: Keep = as_it_is,
        workers: int = 0,
        check: Check = unchecked,
        bounded: Bounded | None = None,
    ) -> None:
        room = Bounded(WALK_MEMORY) if bounded is None else bounded
        self.slicer = slicer
        self.constants = dict(constants or {})
        self.keep: Keep = lambda name, array: room.keep(keep(name, array))
        self.check = check
        self.count = len(batches)
        self.workers = min(workers or processors(), MOST_WORKERS)
        self.position = 0
        self.values: dict[str, list[Held]] = {name: [self.keep(name, b[name]) for b in batches] for name in batches[0]}
        self._uses = Counter(name for reads in slicer.reads for name in reads)
        self._uses.update(slicer.outputs)

    def __len__(self) -> int:
        return len(self.slicer.nodes)

    @property
    def node(self) -> onnx.NodeProto:
        """The node about to be run."""
        return self.slicer.nodes[self.position]

    def compute(
        self, constants: Mapping[str, np.ndarray] | None = None, shift: np.ndarray | None = None
    ) -> dict[str, list[Held]]:
        """Outputs of the current node on all batches, without moving on.

        constants replace its initializers; shift is added to its only output.
        """
        source = self._inputs()
        session = self._session(source, constants)
        keep = self.keep if shift is None else (lambda name, array: self.keep(name, array + shift))
        return self._run(session, source, keep)

    def changed(self, constants: Mapping[str, np.ndarray]) -> dict[str, Lazy[Held]]:
        """Outputs of the current node with other initializers, each computed when it is read and held by nobody."""
        source, outputs = self._inputs(), self._outputs()
        session = self._session(source, constants)

        def run(name: str, i: int) -> Held:
            result: Held
            (result,) = session.run([name], {read: real(values[i]) for read, values in source.items()})
            return result

        return {name: Lazy(partial(run, name), self.count) for name in outputs}

    def advance(self, results: Mapping[str, list[Held]]) -> None:
        """Take `results` as the current node's outputs, drop what nobody needs any more, go to the next node."""
        self.values.update(results)
        for name in self.slicer.reads[self.position]:
            self._uses[name] -= 1
        for name in (*self.slicer.reads[self.position], *results):
            if self._uses[name] <= 0:
                self.values.pop(name, None)
        self.position += 1

    def step(self) -> None:
        """Run the current node and go on; what it alone needed is let go batch by batch."""
        source = self._inputs()
        session = self._session(source, None)
        self.advance(self._run(session, source, self.keep, [name for name in source if self._uses[name] == 1]))

    def _run(
        self, session: ort.InferenceSession, source: Mapping[str, list[Held]], keep: Keep, last: Sequence[str] = ()
    ) -> dict[str, list[Held]]:
        """The current node's outputs on all batches. last: inputs that each batch lets go of."""
        outputs = self._outputs()

        def run(i: int) -> list[Held]:
            inputs = {name: real(values[i]) for name, values in source.items()}
            results = session.run(outputs, inputs)
            self.check(self.position, i, inputs, dict(zip(outputs, results, strict=True)))
            for name in last:
                source[name][i] = EMPTY
            return [keep(name, result) for name, result in zip(outputs, results, strict=True)]

        rows = list(in_order(run, range(self.count), workers=self.workers))
        return {name: [row[place] for row in rows] for place, name in enumerate(outputs)}

    def _inputs(self) -> dict[str, list[Held]]:
        return {name: self.values[name] for name in self.slicer.read_by([self.position])}

    def _outputs(self) -> list[str]:
        return [name for name in self.node.output if name]

    def _session(
        self, source: Mapping[str, list[Held]], constants: Mapping[str, np.ndarray] | None
    ) -> ort.InferenceSession:
        first = {name: values[0] for name, values in source.items()}
        replaced = {**self.constants, **(constants or {})}
        return self.slicer.session([self.position], first, self._outputs(), replaced)

    @property
    def held_bytes(self) -> int:
        """Bytes of all values at hand."""
        return bytes_of(self.values)


def bytes_of(values: Mapping[str, Sequence[object]]) -> int:
    """Bytes of all arrays; what little there is of sequences is not counted."""
    return sum(
        value.nbytes for several in values.values() for value in several if isinstance(value, np.ndarray | Compressed)
    )


# The rest of a graph, run from the values at hand in a walk, some of them replaced.

Constants = Mapping[str, np.ndarray]


class Piece:
    """Some nodes of a graph, with a session of their own that is opened for the first values."""

    def __init__(self, slicer: Slicer, indices: Sequence[int], wanted: Sequence[str], constants: Constants) -> None:
        outputs = slicer.outputs_of(indices)
        self.reads = slicer.read_by(indices)
        self._slicer, self._indices, self._constants = slicer, indices, constants
        self._outputs = [name for name in dict.fromkeys(wanted) if name in outputs]
        self._session: ort.InferenceSession | None = None
        self._opening = Lock()

    def run(self, values: Mapping[str, Held]) -> Values:
        """Run the piece; gives those of the wanted values that it computes."""
        if not self._outputs:
            return {}
        source = {name: values[name] for name in self.reads}
        results = self._opened(source).run(self._outputs, {name: real(value) for name, value in source.items()})
        return dict(zip(self._outputs, results, strict=True))

    def _opened(self, source: Mapping[str, Held]) -> ort.InferenceSession:
        with self._opening:
            if self._session is None:
                self._session = self._slicer.session(self._indices, source, self._outputs, self._constants)
            return self._session


class Suffix:
    """Consecutive pieces that make the graph's outputs."""

    def __init__(self, walk: Walk, pieces: Sequence[Piece]) -> None:
        self._walk, self._pieces = walk, pieces

    def run(self, override: Mapping[str, Sequence[Held]], batches: int | None = None) -> Iterator[Values]:
        """The graph's outputs in each batch (or the first few) where the values in `override` replace those at hand.

        Each is computed shortly before it is read.
        """
        values = {**self._walk.values, **override}
        count = self._walk.count if batches is None else batches
        return in_order(partial(self._run, values), range(count), workers=self._walk.workers, ahead=1)

    def _run(self, several: Mapping[str, Sequence[Held]], batch: int) -> Values:
        values = {name: of_batches[batch] for name, of_batches in several.items()}
        for piece in self._pieces:
            values |= piece.run(values)
        return {name: real(values[name]) for name in self._walk.slicer.outputs}


class Suffixes:
    """The rest of a walk's graph behind any node.

    A session for all that follows, opened at each of n nodes, would load the last weights n times. So the graph is cut
    into √n stretches, and what follows the stretch that the walk is in is one session for all of its nodes.
    """

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._later: dict[int, Piece] = {}

    @cached_property
    def _stretch(self) -> int:
        return ceil(sqrt(len(self._walk)))

    def behind(self, after: int) -> Suffix:
        """What runs behind node `after`; -1: the whole graph."""
        first = after + 1
        cut = ceil(first / self._stretch) * self._stretch
        later = self._from(cut)
        return Suffix(self._walk, [self._piece(first, cut, [*later.reads, *self._walk.slicer.outputs]), later])

    def whole(self, constants: Constants) -> Suffix:
        """The whole graph with some initializers replaced."""
        slicer = self._walk.slicer
        return Suffix(self._walk, [Piece(slicer, slicer.needed(0, slicer.outputs), slicer.outputs, constants)])

    def _from(self, first: int) -> Piece:
        """All nodes from one on; kept until the walk is behind it."""
        if first not in self._later:
            outputs = self._walk.slicer.outputs
            self._later = {first: self._piece(first, len(self._walk), outputs)}
        return self._later[first]

    def _piece(self, first: int, end: int, wanted: Sequence[str]) -> Piece:
        """The nodes between two places that the wanted values need."""
        slicer = self._walk.slicer
        return Piece(slicer, [i for i in slicer.needed(first, wanted) if i < end], wanted, self._walk.constants)
