"""The folder of models as guides find it, with networks in place of two that compile faster."""

from pathlib import Path

import numpy as np
import onnx
from compiling import proto, weight

MODELS = Path(__file__).resolve().parent.parent / "models"
# Inputs and outputs are those of the README's network.
NETWORK = """g (float[N,1,16,16] input) => (float[N,10] logits) {
    a = Conv<pads=[1,1,1,1], strides=[2,2]>(input, w1)
    ar = Relu(a)
    b = Conv<pads=[1,1,1,1], strides=[2,2]>(ar, w2)
    br = Relu(b)
    c = Conv<pads=[1,1,1,1]>(br, w3)
    cr = Relu(c)
    p = GlobalAveragePool(cr)
    f = Flatten(p)
    logits = Gemm<transB=1>(f, w4)
}"""
SHAPES = {"w1": (16, 1, 3, 3), "w2": (32, 16, 3, 3), "w3": (32, 32, 3, 3), "w4": (10, 32)}
# As that of drawings, with half the width and depth.
DRAWINGS = """g (float[batch,64] pixels) => (float[batch,64] drawn) {
    a = Gemm<transB=1>(pixels, w1)
    ar = Relu(a)
    b = Gemm<transB=1>(ar, w2)
    br = Relu(b)
    drawn = Gemm<transB=1>(br, w3)
}"""
DRAWN = {"w1": (128, 64), "w2": (64, 128), "w3": (64, 64)}
SAMPLES = 64


def link_models(folder: Path) -> None:
    """Make `folder`: the project's models and data, but for two networks and the number of the README's samples."""
    folder.mkdir()
    for path in MODELS.iterdir():
        (folder / path.name).symlink_to(path)
    data = folder / "digits_calibration.npz"
    with np.load(data) as archive:
        few = {name: array[:SAMPLES] for name, array in archive.items()}
    data.unlink()
    np.savez(data, **few)
    for name, graph, shapes in (("digits_resnet_dw", NETWORK, SHAPES), ("tiny_mlp", DRAWINGS, DRAWN)):
        weights = {each: weight(*shape, seed=i) for i, (each, shape) in enumerate(shapes.items())}
        path = folder / f"{name}.onnx"
        path.unlink()
        onnx.save(proto(graph, **weights), path)
