"""Memory of a run, step by step: the weights as they are loaded, what lives at the step, and what its kernel needs.

m_k = Σ_w bytes_w + Σ_t bytes_t [t lives at step k] + scratch_k [k on codes];  the memory of a run is max_k m_k
A tensor on codes is also there as real values where those are made, and from its first reader in float to its last.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import onnx_ir as ir

from ptqc.ir.layers import Layer, Weight
from ptqc.ir.operators import Trait, named
from ptqc.ir.plan import Plan
from ptqc.passes.allocate.cost_model import Edge, Network, owners

REAL, ACCUMULATOR, POINTER = 4, 4, 8  # bytes
# What gives another name to the memory of its input.
ALIASES = named(Trait.RESHAPES) | named(Trait.COPIES)

# A step behind all operators, at which outputs are converted and handed over.
END = "the end"

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class LiveTensor:
    """An activation that is kept from step `first` to step `last`. read: the step of its first reader.

    real, codes: its bytes in either form; none where they belong to the caller, or to the tensor that it is another
    view of. copy: bytes of its real values beside its codes; none where it has no codes.
    """

    tensor: str
    real: int
    codes: int
    copy: int
    first: int
    read: int
    last: int

    @property
    def life(self) -> range:
        """The steps at which it is kept."""
        return range(self.first, self.last + 1)

    @property
    def quantizing(self) -> range:
        """The steps at which the real values that become codes are still there."""
        return range(self.first, self.first + 1 if self.real else self.first)

    @property
    def used(self) -> range:
        """The steps at which real values are there beside the codes, where some reader takes those."""
        return range(self.read, self.last + 1)


@dataclass(frozen=True)
class LoadedWeight:
    """A weight of `elements` numbers, and the kernels that read it: float32, or int8 for kernels on codes."""

    weight: str
    elements: int
    nodes: tuple[str, ...]

    @property
    def on_codes(self) -> int:
        """Bytes that it takes more where some kernel is on codes: where there are others, both forms are counted."""
        return (1 - REAL if len(self.nodes) == 1 else 1) * self.elements


@dataclass(frozen=True)
class MemoryModel:
    """What the memory of a choice of sites depends on.

    steps: operators in the order in which they run, and END. scratch: bytes that a kernel on codes needs while it runs.
    fixed: bytes of weights and constants where nothing is on codes.
    """

    network: Network
    steps: tuple[str, ...]
    tensors: tuple[LiveTensor, ...]
    weights: tuple[LoadedWeight, ...]
    scratch: Mapping[str, int]
    fixed: int

    @classmethod
    def of(cls, model: ir.Model, everything: Plan, shapes: Shapes) -> "MemoryModel":
        """A float model in normal form. everything: a plan that quantizes every site.

        shapes: of one sample; what is not among them counts as one number.
        """
        network = Network.of(model, everything)
        steps = (*(operator.node for operator in network.operators), END)
        kernels = {o.node for o in network.operators if o.tensors}
        weights = tuple(_loaded(weight, kernels) for weight in everything.weights)
        constants = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
        tensors = tuple(_tensors(model, network, owners(everything.kernels), shapes))
        scratch = {x.name: _scratch(x, shapes.get(x.name, ())) for x in everything.layers if x.name in kernels}
        return cls(network, steps, tensors, weights, scratch, constants)

    def loaded(self, quantized: Collection[str]) -> int:
        """Bytes of the weights when these tensors are quantized."""
        codes = self.network.on_codes(quantized)
        return self.fixed + sum(w.on_codes for w in self.weights if not codes.isdisjoint(w.nodes))

    def running(self, quantized: Collection[str]) -> list[int]:
        """Bytes beside the weights, at each step."""
        codes, edges = self.network.on_codes(quantized), {edge.tensor: edge for edge in self.network.edges}
        running = [self.scratch.get(step, 0) if step in codes else 0 for step in self.steps]
        for tensor in self.tensors:
            if tensor.tensor not in quantized:
                parts = [(tensor.life, tensor.real)]
            else:
                edge, parts = edges[tensor.tensor], [(tensor.life, tensor.codes)]
                parts += [(tensor.quantizing, tensor.copy)] if edge.maker not in codes else []
                parts += [(tensor.used, tensor.copy)] if _is_read(edge, codes) else []
            for steps, size in parts:
                for step in steps:
                    running[step] += size
        return running

    def peak(self, quantized: Collection[str]) -> int:
        """Bytes of a run at most, with the weights."""
        return self.loaded(quantized) + max(self.running(quantized), default=0)


def _is_read(edge: Edge, codes: Collection[str]) -> bool:
    """Whether something reads its real values."""
    return edge.real or any(reader not in codes for reader in edge.readers)


def _loaded(weight: Weight, kernels: Collection[str]) -> LoadedWeight:
    nodes = tuple(layer.name for layer in weight.layers if layer.name in kernels)
    return LoadedWeight(weight.name, weight.size, nodes)


def _scratch(layer: Layer, output: Sequence[int]) -> int:
    """Bytes that ONNX Runtime's integer kernels ask for.

    Accumulators of the whole output, and for windows the columns; where each channel is for itself, pointers alone.
    """
    positions, taps = prod(output) // layer.channels, prod(layer.kernel)
    if layer.is_convolution and layer.width == taps and layer.groups == layer.channels:
        return POINTER * taps * positions
    is_pointwise = not layer.is_convolution or (taps == 1 and set(layer.strides) <= {1})
    return ACCUMULATOR * prod(output) + (0 if is_pointwise else layer.width * positions)


def _tensors(model: ir.Model, network: Network, owner: Mapping[str, str], shapes: Shapes) -> Iterator[LiveTensor]:
    """What operators make, and the model's inputs."""
    place = {operator.node: step for step, operator in enumerate(network.operators)}
    place |= {absorbed: place[node] for absorbed, node in owner.items()}
    sites, owners = {edge.tensor for edge in network.edges}, set(owner.values())
    result = [(str(value.name), value) for node in model.graph for value in node.outputs]
    values = [(str(value.name), value) for value in model.graph.inputs] + [m for m in result if m[0] not in owners]
    reads = {name: _reads(value, place, len(network.operators)) for name, value in values}
    lasts = _lasts(values, reads)
    for name, value in values:
        node, size = value.producer(), prod(shapes.get(name, ()))
        is_view, read = node is not None and node.op_type in ALIASES, min(reads[name])
        real = 0 if node is None or is_view else size * _width(value)
        codes, copy = (0 if is_view else size, REAL * size) if name in sites else (0, 0)
        first = read if node is None else place[str(node.outputs[0].name)]
        yield LiveTensor(name, int(real), codes, copy, first, read, lasts[name])


def _width(value: ir.Value) -> float:
    """Bytes of a number; texts count as if they were numbers."""
    known = value.dtype is not None and value.dtype not in (ir.DataType.STRING, ir.DataType.UNDEFINED)
    return float(value.dtype.itemsize) if known and value.dtype is not None else REAL


def _reads(value: ir.Value, place: Mapping[str, int], end: int) -> list[int]:
    """The steps that read a value. Outputs are kept to the end, as is what a subgraph reads."""
    result = [place.get(str(reader.outputs[0].name), end) for reader in value.consumers()]
    return [*result, end] if value.is_graph_output() or not result else result


def _viewed(node: ir.Node) -> str:
    """The value that a view is of."""
    return "" if node.inputs[0] is None else str(node.inputs[0].name)


def _lasts(values: Sequence[tuple[str, ir.Value]], reads: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The last step of each value, or of a view of it."""
    lasts = {name: max(reads[name]) for name, _ in values}
    for name, value in reversed(values):
        node = value.producer()
        if node is not None and node.op_type in ALIASES and (result := _viewed(node)) in lasts:
            lasts[result] = max(lasts[result], lasts[name])
    return lasts
