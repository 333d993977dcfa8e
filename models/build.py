"""Train and export the networks of the catalogue: `python models/build.py NAME|all [--out DIR]`.

Prints for every file what `catalogue.toml` records about it. Seeds are fixed, but another version of torch or another
processor rounds differently: a rebuilt file has about the same score, not the same hash.
"""

import argparse
import importlib
from pathlib import Path

import catalogue
import digits
import evaluation
import numpy as np
import onnx
import onnxruntime as ort
import torch

ROOT = Path(__file__).resolve().parent.parent


def build_network(name: str, folder: Path) -> None:
    """Run the recipe `models/NAME.py` and report on the file it gives."""
    recipe = importlib.import_module(name)
    path = folder / f"{name}.onnx"
    recipe.EXPORT.write(recipe.train(), path)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    score = evaluation.TASKS[name].score(lambda feeds: session.run(None, feeds)[0])
    weights = sum(int(np.prod(tensor.dims)) for tensor in onnx.load(path).graph.initializer)
    print(f'name = "{name}"\nsha256 = "{catalogue.digest(path)}"\nweights = {weights}\nscore = {score:.2f}')


def build_digits_data(folder: Path) -> None:
    """Write the calibration and evaluation arrays of the digits."""
    inputs, labels = digits.evaluation()
    np.savez_compressed(folder / "digits_calibration.npz", input=digits.calibration())
    np.savez_compressed(folder / "digits_evaluation.npz", input=inputs, labels=labels)
    for name in ("digits_calibration.npz", "digits_evaluation.npz"):
        print(f'file = "{name}"\nsha256 = "{catalogue.digest(folder / name)}"')


def main() -> None:
    """Build one network or all of them, and the arrays of the digits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=[*evaluation.TASKS, "digits_data", "all"])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "models", help="default: build/models")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    # One thread sums in one order.
    torch.set_num_threads(1)
    if options.name in ("digits_data", "all"):
        build_digits_data(options.out)
    for name in evaluation.TASKS if options.name == "all" else [options.name]:
        if name in evaluation.TASKS:
            build_network(name, options.out)


if __name__ == "__main__":
    main()
