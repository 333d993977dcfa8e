"""Install every peer that peers.py and latency.py compare with, each in an environment of its own.

python benchmarks/install_peers.py FOLDER [--peers aimet,quark]
"""

import argparse
import subprocess
import venv
from pathlib import Path

from harness import say

# PyTorch by itself first, so that a CPU build that pip finds is kept.
RUNTIME = ("onnxruntime==1.31.1", "onnx")
TORCH = ("torch==2.13.0",)
AIMET: tuple[str, ...] = ("bokeh", "hvplot", "jinja2", "jsonschema", "onnx_ir", "onnxscript", "osqp", "pandas")
AIMET += ("psutil", "pybind11", "pyyaml", "scikit-learn", "scipy", "tqdm")
MODELOPT: tuple[str, ...] = ("nvidia-modelopt==0.47.0", "cppimport", "lief", "onnx-graphsurgeon", "onnxslim")
MODELOPT += ("onnxconverter-common", "onnxscript", "polygraphy")
STEPS: dict[str, tuple[tuple[str, ...], ...]] = {
    "onnxruntime": ((*RUNTIME, "onnx-ir", "sympy"),),
    "onnxsim": ((*RUNTIME, "onnxsim==0.8.1"),),
    # Of what it requires all but onnx2torch, whose torchvision may bring another PyTorch; no recipe here needs it.
    "aimet": (TORCH, ("--no-deps", "aimet-onnx==2.42.0"), (*RUNTIME, *AIMET)),
    "modelopt": (TORCH, (*RUNTIME, *MODELOPT)),
    "nncf": (("nncf==3.4.0", "openvino==2026.4.1", *RUNTIME),),
    "openvino": (("openvino==2026.4.1", "numpy"),),
    "quark": (TORCH, ("amd-quark==0.13", "onnxruntime>=1.22.2,<=1.28.0")),
}


def interpreter(folder: Path, peer: str) -> Path:
    """The Python of a peer's environment."""
    return folder / peer / "bin" / "python"


def install(folder: Path, name: str, steps: tuple[tuple[str, ...], ...]) -> bool:
    """Make an environment of that name, with the packages of each step in turn; whether all could be installed."""
    venv.create(folder / name, with_pip=True)
    pip = [str(interpreter(folder, name)), "-m", "pip", "install", "-q"]
    return all(subprocess.run([*pip, *packages], check=False).returncode == 0 for packages in steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peers", default=",".join(STEPS), help="comma-separated; default: all")
    arguments = parser.parse_args()
    for peer in arguments.peers.split(","):
        say(f"{peer}: {'installed' if install(arguments.folder, peer, STEPS[peer]) else 'not installed, see above'}")


if __name__ == "__main__":
    main()
