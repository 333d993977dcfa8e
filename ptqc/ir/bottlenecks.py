"""Values through which the whole of a network passes."""

from collections.abc import Iterator

import onnx_ir as ir


def bottlenecks(model: ir.Model) -> Iterator[str]:
    """Names of the values that, once they are there, are all that is still read, in order; constants aside."""
    position = {node: index for index, node in enumerate(model.graph)}
    end = len(position)

    def last_read(value: ir.Value) -> int:
        uses = [position.get(use.node, end) for use in value.uses()]
        return end if value.is_graph_output() else max(uses, default=-1)

    alive = {value: last_read(value) for value in model.graph.inputs if not value.is_initializer()}
    for node, index in position.items():
        if node.op_type != "Constant":
            alive |= {value: last_read(value) for value in node.outputs}
        alive = {value: last for value, last in alive.items() if last > index}
        if len(alive) == 1:
            yield str(next(iter(alive)).name)
