"""A model with the smallest weights of each layer at zero: `python models/pruned.py MODEL --share 0.5 --out FILE`.

Nothing is trained afterwards, so the more is pruned the less the model is worth. It is for what becomes of zeros.
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

ROOT = Path(__file__).resolve().parent.parent
# The second input of these, where it is a constant, is pruned.
LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def pruned(model: onnx.ModelProto, share: float) -> onnx.ModelProto:
    """The model with this share of every layer's weights at zero, those of the least magnitude."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    weights = {node.input[1] for node in found.graph.node if node.op_type in LAYERS}
    for tensor in found.graph.initializer:
        if tensor.name in weights and len(tensor.dims) > 1:
            values = numpy_helper.to_array(tensor)
            order = np.argsort(np.abs(values), axis=None, kind="stable")
            kept = values.copy().reshape(-1)
            kept[order[: int(share * values.size)]] = 0
            tensor.CopyFrom(numpy_helper.from_array(kept.reshape(values.shape), tensor.name))
    return found


def main() -> None:
    """Read, prune and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "models" / "pruned.onnx")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(pruned(onnx.load(options.model), options.share), options.out)


if __name__ == "__main__":
    main()
