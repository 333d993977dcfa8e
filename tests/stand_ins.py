"""The folder of models as guides find it, with a network in place of the README's that compiles in seconds."""

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
SHAPES = {"w1": (16, 1, 3, 3), "w2": (64, 16, 3, 3), "w3": (64, 64, 3, 3), "w4": (10, 64)}
SAMPLES = 64


def link_models(folder: Path) -> None:
    """Make `folder`: the project's models and data, but for the README's network and the number of its samples."""
    folder.mkdir()
    for path in MODELS.iterdir():
        (folder / path.name).symlink_to(path)
    network, data = folder / "digits_resnet_dw.onnx", folder / "digits_calibration.npz"
    with np.load(data) as archive:
        few = {name: array[:SAMPLES] for name, array in archive.items()}
    for path in (network, data):
        path.unlink()
    np.savez(data, **few)
    weights = {name: weight(*shape, seed=i) for i, (name, shape) in enumerate(SHAPES.items())}
    onnx.save(proto(NETWORK, **weights), network)
