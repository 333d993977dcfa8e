"""Which kernels ONNX Runtime really picked, read from the model that it optimized."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from ptqc.execution.onnxruntime import open_proto, session_options
from ptqc.execution.skeleton import WITHOUT
from ptqc.ir.operators import OPERATORS
from ptqc.ir.references import has_references
from ptqc.ir.split_file import is_split
from ptqc.utils.scratch import scratch

MARK = ";"
# What is too large for one message ONNX Runtime writes to two files, as well.
BESIDE: Mapping[str, str] = {
    "session.optimized_model_external_initializers_file_name": "optimized.data",
    "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
}


@dataclass(frozen=True)
class Census:
    """Operators of the optimized graph, and the planned integer nodes that did not become integer kernels."""

    operators: Mapping[str, int]
    missed: Mapping[str, str]


def take(proto: onnx.ModelProto, expected: Mapping[str, tuple[str, str]], *, lean: bool = False) -> Census:
    """Count kernels. expected: node -> (operator, name in the file of its codes, or of its float output). lean: leave
    weights packed where none is expected.

    The optimizer renames values but keeps node names as prefixes, so a copy of the file with named nodes is optimized.
    """
    named = onnx.ModelProto()
    named.CopyFrom(proto)
    marks = _mark(named.graph, expected)
    graph = optimized(named, WITHOUT if lean and not expected else ())
    found = {node.name.partition(MARK)[0]: node.op_type for node in graph.node if MARK in node.name}
    missed = {}
    for node, (operator, _) in expected.items():
        kernel = found.get(marks[node], "nothing")
        if kernel not in OPERATORS[operator].kernels:
            missed[node] = kernel
    return Census(dict(sorted(Counter(n.op_type for n in graph.node).items())), missed)


def values(proto: onnx.ModelProto) -> set[str]:
    """Names of what the optimized graph's nodes make: what no kernel keeps to itself."""
    return {name for node in optimized(proto).node for name in node.output}


def optimized(proto: onnx.ModelProto, without: Sequence[str] = ()) -> onnx.GraphProto:
    """The graph that ONNX Runtime makes of a file when it loads it, without some of its optimizations.

    Large tensors of files that are too large for one message are references, to files that are gone.
    """
    with scratch() as folder:
        path = Path(folder) / "optimized.onnx"
        options = session_options()
        options.optimized_model_filepath = str(path)
        is_large = is_split(proto) or has_references(proto)
        for name, value in BESIDE.items() if is_large else ():
            options.add_session_config_entry(name, value)
        try:
            open_proto(proto, options, without)
            return onnx.load(path, load_external_data=False).graph
        except Exception:
            if not is_large:
                path.write_bytes(proto.SerializeToString())  # where the disk is at fault, this says so
            raise


def _mark(graph: onnx.GraphProto, expected: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Name the nodes that compute the expected values; node -> its mark."""
    makers = {name: node for node in graph.node for name in node.output}
    marks = {}
    for number, (node, (operator, value)) in enumerate(expected.items()):
        maker = makers[value]
        if maker.op_type == "QuantizeLinear" or OPERATORS[operator].is_looked_up:  # what a table gives gets a shape
            maker = makers[maker.input[0]]
        marks[node] = f"k{number}"
        maker.name = marks[node] + MARK
    return marks
