"""What an installed wheel is for, tried with nothing else than the wheel and what it requires: prints JSON.

A small planted network is compiled, opened, run, verified and resolved to another size, in Python and by the command
line. It is run in environments of their own (`wheels.py`), from an empty folder, so that no source of ptqc is found.
"""

import json
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

CHANNELS, CLASSES, SIZE, SAMPLES = 24, 10, 12, 64


def network() -> onnx.ModelProto:
    """Three convolutions and a classifier with normal weights, which the samples of `data` set apart."""
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        values = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) / 2)
        return numpy_helper.from_array(values.astype(np.float32), name)

    weights = [
        weight("stem", CHANNELS, 3, 3, 3),
        weight("depth", CHANNELS, 1, 3, 3),
        weight("mix", 2 * CHANNELS, CHANNELS, 1, 1),
        weight("head", CLASSES, 2 * CHANNELS),
    ]
    nodes = [
        helper.make_node("Conv", ["image", "stem"], ["stem_out"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["stem_out"], ["a"]),
        helper.make_node("Conv", ["a", "depth"], ["depth_out"], pads=[1, 1, 1, 1], group=CHANNELS),
        helper.make_node("Relu", ["depth_out"], ["b"]),
        helper.make_node("Conv", ["b", "mix"], ["mix_out"]),
        helper.make_node("Relu", ["mix_out"], ["c"]),
        helper.make_node("GlobalAveragePool", ["c"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Gemm", ["flat", "head"], ["logits"], transB=1),
    ]
    image = helper.make_tensor_value_info("image", onnx.TensorProto.FLOAT, ["N", 3, SIZE, SIZE])
    logits = helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["N", CLASSES])
    graph = helper.make_graph(nodes, "planted", [image], [logits], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def data() -> np.ndarray:
    """Smooth images."""
    coarse = np.random.default_rng(1).standard_normal((SAMPLES, 3, SIZE // 3, SIZE // 3))
    return coarse.repeat(3, axis=2).repeat(3, axis=3).astype(np.float32)


def work(folder: Path) -> dict[str, object]:
    """Do everything in an empty folder. Raises whatever fails."""
    started = time.monotonic()
    import ptqc

    loaded = time.monotonic() - started
    if Path(ptqc.__file__).is_relative_to(Path(__file__).resolve().parent.parent):
        raise SystemExit(f"{ptqc.__file__} is the source, not what was installed")
    images = data()
    onnx.save(network(), folder / "model.onnx")
    np.savez(folder / "images.npz", image=images)
    artifact = ptqc.compile(
        folder / "model.onnx", budget="45%", calibration=images, output=folder / "out", cache=folder / "store"
    )
    logits = ptqc.load(folder / "out").run({"image": images[:4]})["logits"]
    if logits.shape != (4, CLASSES) or not np.isfinite(logits).all():
        raise SystemExit(f"the outputs are {logits.shape}, finite: {np.isfinite(logits).all()}")
    ptqc.verify(folder / "out", model=folder / "model.onnx")
    ptqc.resolve(folder / "out", budget="40%", output=folder / "smaller", cache=folder / "store")
    for arguments in (["verify", "smaller"], ["doctor", "--cache", "store"]):
        done = subprocess.run(
            [sys.executable, "-m", "ptqc", *arguments], cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"ptqc {' '.join(arguments)} ends with {done.returncode}: {done.stderr[-500:]}")
    return {
        "python": platform.python_version(),
        "import_seconds": loaded,
        "seconds": time.monotonic() - started,
        "bytes": artifact.manifest["file"]["bytes"],
        "of_limit": artifact.manifest["file"]["bytes"] / artifact.manifest["allocation"]["limit"],
        "packages": {one.metadata["Name"]: one.version for one in metadata.distributions()},
    }


if __name__ == "__main__":
    print(json.dumps(work(Path(sys.argv[1]))))
