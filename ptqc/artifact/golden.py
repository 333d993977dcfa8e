"""Golden samples: inputs, and what the delivered file made of them when it was compiled, kept beside it.

One thread computed the outputs, so that their bytes do not depend on the machine's number of processors.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import onnx
import onnx_ir as ir

from ptqc.errors import MALFORMED, IntegrityError
from ptqc.execution.agreement import relative_to_float
from ptqc.execution.onnxruntime import Feeds, Runner, open_packed, session_options, tensors_of

# What arrays of numbers and arrays of strings are called in the file.
INPUTS, OUTPUTS = ("input", "text"), ("output", "output_text")
MOST_SAMPLES = 2
MOST_BYTES = 4 << 20  # a second sample is kept only within this


@dataclass(frozen=True)
class Golden:
    """Inputs and outputs by name, sample by sample."""

    inputs: tuple[Feeds, ...]
    outputs: tuple[Feeds, ...]

    def to_bytes(self) -> bytes:
        """As safetensors: `0.input.x`, `0.output.y`, `1.input.x`, …; strings as `0.text.x` and `0.output_text.y`."""
        from safetensors.numpy import save

        arrays = {}
        for roles, samples in ((INPUTS, self.inputs), (OUTPUTS, self.outputs)):
            for number, sample in enumerate(samples):
                for name, array in sample.items():
                    is_text = array.dtype.kind == "U"
                    encoded = _numbered(array) if is_text else array
                    arrays[f"{number}.{roles[is_text]}.{name}"] = np.asarray(encoded, order="C")
        return bytes(save(arrays))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises IntegrityError when the file is missing or holds anything else."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            arrays = load(path.read_bytes())
            numbers = range(_count(arrays))
            inputs, outputs = ([_sample(arrays, i, roles) for i in numbers] for roles in (INPUTS, OUTPUTS))
            if not (all(inputs) and all(outputs)):
                raise ValueError("a sample has no inputs or no outputs")
            if any(sample.keys() != outputs[0].keys() for sample in outputs):
                raise ValueError("samples have outputs of other names than the first")
        except (OSError, SafetensorError, *MALFORMED) as error:
            raise IntegrityError(f"{path} does not hold golden samples: {error}; compile again") from error
        return cls(tuple(inputs), tuple(outputs))


def take(model: ir.Model, file: onnx.ModelProto, samples: Sequence[Feeds]) -> tuple[Golden, dict[str, float]]:
    """Golden samples of a file, and how far each float output is from the float model's on them, relatively."""
    packed = open_packed(file, model, session_options(threads=1))
    outputs: list[Feeds] = []
    for feeds in samples[:MOST_SAMPLES]:
        outputs.append(tensors_of(packed.run(feeds)))
        if 2 * sum(array.nbytes for array in (*feeds.values(), *outputs[0].values())) > MOST_BYTES:
            break
    golden = Golden(tuple(samples[: len(outputs)]), tuple(outputs))
    return golden, distances(golden, Runner(model, options=session_options(threads=1)))


def distances(golden: Golden, runner: Runner) -> dict[str, float]:
    """Relative difference of the golden outputs from those of another network, by float output."""
    result = [tensors_of(runner.run(feeds)) for feeds in golden.inputs]
    return {
        name: relative_to_float([other[name] for other in result], [sample[name] for sample in golden.outputs])
        for name, array in golden.outputs[0].items()
        if array.dtype.kind == "f"
    }


def _count(arrays: Mapping[str, np.ndarray]) -> int:
    """Of samples, which are numbered from 0 on. Raises ValueError."""
    numbers = {int(key.partition(".")[0]) for key in arrays}
    if not numbers or numbers != set(range(len(numbers))) or len(numbers) > MOST_SAMPLES:
        raise ValueError(f"samples are numbered {sorted(numbers)[:5]}; expected 0 to at most {MOST_SAMPLES - 1}")
    return len(numbers)


def _sample(arrays: Mapping[str, np.ndarray], number: int, roles: tuple[str, str]) -> Feeds:
    numbers, text = roles
    return {**_named(arrays, f"{number}.{numbers}."), **_texts(arrays, f"{number}.{text}.")}


def _named(arrays: Mapping[str, np.ndarray], prefix: str) -> Feeds:
    return {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}


def _texts(arrays: Mapping[str, np.ndarray], prefix: str) -> Feeds:
    """Strings from the numbers of their characters. Raises ValueError or IndexError where they are not of strings."""
    result = _named(arrays, prefix)
    for array in result.values():
        array.tobytes().decode(f"utf-32-{sys.byteorder[0]}e")  # NumPy takes any number for a character
    return {name: a.reshape(-1).view(f"U{a.shape[-1]}").reshape(a.shape[:-1]) for name, a in result.items()}


def _numbered(array: np.ndarray) -> np.ndarray:
    """Strings as the numbers of their characters, along a new last axis."""
    return array.reshape(-1).view(np.uint32).reshape(*array.shape, array.dtype.itemsize // 4)
