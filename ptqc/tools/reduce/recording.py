"""The values inside a model on a few samples, and their types: what stands in for nodes that are cut off.

`python -m ptqc.tools.reduce.recording FOLDER` is the work of a sandboxed process, since the model may crash what runs
it. FOLDER holds `model.onnx` and the inputs `0.npz`, `1.npz`, …, which receive all other values.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from ptqc.execution.onnxruntime import Feeds
from ptqc.ir.external import write_model
from ptqc.utils import sandbox
from ptqc.utils.store import write_npz

SECONDS = 600.0
MODEL, INFERRED, SAMPLE = "model.onnx", "inferred.onnx", "{}.npz"


def record(model: onnx.ModelProto, samples: Sequence[Feeds], folder: Path) -> Mapping[str, onnx.ValueInfoProto]:
    """Types of the values of a model by name; the values themselves are in the folder, for `recorded`.

    Where the model does not run, only its inputs have values, and what shape inference cannot tell has no type.
    """
    write_model(model, folder / MODEL)
    for number, feeds in enumerate(samples):
        write_npz(folder / SAMPLE.format(number), feeds)
    sandbox.run(__name__, [str(folder)], SECONDS)
    return {**_measured(folder), **_inferred(model, folder)}


def recorded(folder: Path, number: int, names: Sequence[str]) -> Feeds | None:
    """Some values of a sample; None where they were not computed."""
    with np.load(folder / SAMPLE.format(number)) as values:
        return {name: values[name] for name in names} if all(name in values for name in names) else None


def _inferred(model: onnx.ModelProto, folder: Path) -> dict[str, onnx.ValueInfoProto]:
    """Types by shape inference and as declared, where they tell the rank."""
    path = folder / INFERRED
    graph = onnx.load_from_string(path.read_bytes()).graph if path.is_file() else model.graph
    values = (*graph.value_info, *graph.output, *graph.input)
    return {value.name: value for value in values if value.type.tensor_type.HasField("shape")}


def _measured(folder: Path) -> dict[str, onnx.ValueInfoProto]:
    """Types of arrays, with the sizes that they had."""
    with np.load(folder / SAMPLE.format(0)) as values:
        arrays = {name: values[name] for name in values}
    return {
        name: onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in arrays.items()
        if array.dtype.kind in "fiub"
    }


def main(folder: Path) -> None:
    """The sandboxed process."""
    from ptqc.execution.onnxruntime import Runner
    from ptqc.ir.external import has_references

    model = onnx.load(folder / MODEL, load_external_data=False)
    onnx.save(onnx.shape_inference.infer_shapes(model), folder / INFERRED)
    names = [name for node in model.graph.node for name in node.output if name]
    runner = Runner(folder / MODEL if has_references(model) else model, names)
    for path in sorted(folder.glob(SAMPLE.format("*"))):
        with np.load(path) as arrays:
            feeds = dict(arrays)
        values = runner.run(feeds).items()
        result = {name: value for name, value in values if isinstance(value, np.ndarray) and value.dtype != object}
        write_npz(path, {**result, **feeds})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
