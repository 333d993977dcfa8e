"""Parts of a graph as models of their own: what they read from the rest becomes an input."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx

from ptqc.ir.protos import reads, subgraphs


@dataclass(frozen=True)
class Subgraph:
    """Nodes by number, in order; values that others stand in for; outputs that are left out."""

    nodes: tuple[int, ...]
    instead: Mapping[str, str] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()

    def stands_for(self, name: str) -> str:
        """The value that is read where the graph says `name`."""
        while name in self.instead:
            name = self.instead[name]
        return name


class Whole:
    """A model that parts are cut out of. types: of its values, by name."""

    def __init__(self, model: onnx.ModelProto, types: Mapping[str, onnx.ValueInfoProto]) -> None:
        self._model, self._types = model, types
        self.nodes: Sequence[onnx.NodeProto] = list(model.graph.node)
        self._constants = {tensor.name: tensor for tensor in model.graph.initializer}
        self._outputs = {value.name for value in model.graph.output}
        self._reads = [reads(node) for node in self.nodes]

    def all(self) -> Subgraph:
        """The whole model."""
        return Subgraph(tuple(range(len(self.nodes))))

    def inputs(self, cut: Subgraph) -> list[str]:
        """Names of what a part reads and does not make, constants left out."""
        result = {name for i in cut.nodes for name in self.nodes[i].output}
        read = (cut.stands_for(name) for i in cut.nodes for name in sorted(self._reads[i]))
        return [name for name in dict.fromkeys(read) if name not in result and name not in self._constants]

    def outputs(self, cut: Subgraph) -> list[str]:
        """Names of what a part gives: what the rest of the graph reads, and what nothing in the part does."""
        inside = {cut.stands_for(name) for i in cut.nodes for name in self._reads[i]}
        nodes = set(cut.nodes)
        outside = {name for i, names in enumerate(self._reads) if i not in nodes for name in names} | self._outputs
        result = [name for i in cut.nodes for name in self.nodes[i].output if name]
        shown = [name for name in result if name in outside and (name not in cut.hidden or name not in inside)]
        return shown or [name for name in result if name not in inside][-1:]

    def model(self, cut: Subgraph) -> onnx.ModelProto | None:
        """A part as a model; None where a value has no known type, or a graph inside a node reads a replaced one."""
        inputs, outputs = self.inputs(cut), self.outputs(cut)
        if not all(name in self._types for name in (*inputs, *outputs)) or not outputs:
            return None
        if any(name in cut.instead for i in cut.nodes if subgraphs(self.nodes[i]) for name in self._reads[i]):
            return None
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        graph = model.graph
        for entries in (graph.node, graph.input, graph.output, graph.value_info, graph.initializer):
            del entries[:]
        graph.node.extend(self._renamed(i, cut) for i in cut.nodes)
        graph.input.extend(self._types[name] for name in inputs)
        graph.output.extend(self._types[name] for name in outputs)
        read = {cut.stands_for(name) for i in cut.nodes for name in self._reads[i]}
        graph.initializer.extend(tensor for name, tensor in self._constants.items() if name in read)
        return model

    def bypasses(self, cut: Subgraph) -> Iterator[Subgraph]:
        """Parts with one node less, whose result is one of its inputs of the same type."""
        for i in cut.nodes:
            output = self.nodes[i].output[0] if self.nodes[i].output else ""
            for name in self._alike(output, self.nodes[i].input):
                nodes = tuple(other for other in cut.nodes if other != i)
                if nodes and cut.stands_for(name) != output:
                    yield Subgraph(nodes, {**cut.instead, output: name}, cut.hidden)

    def _alike(self, output: str, names: Iterable[str]) -> list[str]:
        known = self._types.get(output)
        return [name for name in names if known and name in self._types and self._types[name].type == known.type]

    def _renamed(self, index: int, cut: Subgraph) -> onnx.NodeProto:
        node = onnx.NodeProto()
        node.CopyFrom(self.nodes[index])
        node.input[:] = [cut.stands_for(name) for name in node.input]
        return node
