"""What the bytes of compiled files are: indices of weights, scales, biases, levels, functions, nodes and the rest.

python benchmarks/file_bytes.py FILE [FILE ...] [--out results.json]
"""

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import onnx
from harness import Column, number

from ptqc.ir.external import field_bytes

# Formal inputs of functions that hold indices begin so; the others, and what they are.
INDICES = ("p", "m")
PARTS = {"s": "scales", "u": "scales", "b": "biases", "k": "biases", "v": "levels", "w": "levels"}
KINDS = ("indices", "scales", "biases", "levels", "other constants", "functions", "calls", "operators", "rest")
COLUMNS = (
    Column("file", "file"),
    Column("bytes", "bytes", number(0)),
    *(Column(kind, kind, number(0)) for kind in KINDS),
    Column("headers of constants", "headers", number(0)),
)


def entries(model: onnx.ModelProto) -> Iterator[tuple[str, int, int]]:
    """What each part of a file is, the bytes of its entry, and those of them that are not its numbers."""
    inputs = {function.name: list(function.input) for function in model.functions}
    read: dict[str, str] = {}
    for node in model.graph.node:
        for name, formal in zip(node.input, inputs.get(node.op_type, ()), strict=False):
            read.setdefault(name, "indices" if formal.startswith(INDICES) else PARTS.get(formal, "other constants"))
        yield "calls" if node.op_type in inputs else "operators", field_bytes(node.ByteSize()), 0
    for tensor in model.graph.initializer:
        size = field_bytes(tensor.ByteSize())
        yield read.get(tensor.name, "other constants"), size, size - len(tensor.raw_data)
    for function in model.functions:
        yield "functions", field_bytes(function.ByteSize()), 0


def row(path: Path) -> dict[str, Any]:
    """The bytes of a file by kind; headers are counted in the kinds, too."""
    kinds: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
    headers = 0
    for kind, size, header in entries(onnx.load(path)):
        kinds[kind] += size
        headers += header
    total = path.stat().st_size
    kinds["rest"] = total - kinds.total()
    return {"file": path.parent.name or path.name, "bytes": total, **kinds, "headers": headers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="model.onnx of an artifact")
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    arguments = parser.parse_args()
    facts, rows = harness.machine(), [row(path) for path in arguments.files]
    harness.write_results(arguments.out, rows, facts)
    harness.print_results(rows, COLUMNS, facts)


if __name__ == "__main__":
    main()
