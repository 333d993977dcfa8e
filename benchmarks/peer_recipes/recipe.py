"""What the recipes share: the command line, the samples, one line of JSON. Runs where ptqc is not installed."""

import importlib.metadata
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Feeds = dict[str, np.ndarray]


@dataclass(frozen=True)
class Job:
    """A model to quantize. target: the file to write; effort: share of the steps that the peer recommends."""

    model: Path
    samples: list[Feeds]
    target: Path
    effort: float

    def steps(self, recommended: int) -> int:
        """Optimizing steps to take."""
        return max(1, round(self.effort * recommended))


Recipe = Callable[[Job], str | None]  # what a reader of the table should know about this run, if anything


class Reader:
    """Samples in the form that ONNX Runtime's tools and those made after them ask for: one at a time, then None."""

    def __init__(self, samples: list[Feeds]) -> None:
        self._samples = samples
        self.rewind()

    def get_next(self) -> Feeds | None:
        """The next sample."""
        return next(self._left, None)

    def rewind(self) -> None:
        """Start again."""
        self._left = iter(self._samples)


def read_samples(path: Path) -> list[Feeds]:
    """Samples in their order; the array NUMBER:INPUT of the file is one input of one sample."""
    samples: dict[int, Feeds] = {}
    with np.load(path, allow_pickle=False) as arrays:
        for key in arrays.files:
            number, name = key.split(":", 1)
            samples.setdefault(int(number), {})[name] = arrays[key]
    return [samples[number] for number in sorted(samples)]


def batches(samples: list[Feeds], size: int) -> list[Feeds]:
    """Samples of the same shape put together; the last batch may be smaller."""
    groups = [samples[start : start + size] for start in range(0, len(samples), size)]
    return [{name: np.concatenate([feeds[name] for feeds in group]) for name in group[0]} for group in groups]


def main(package: str, recipes: Mapping[str, Recipe]) -> None:
    """Run `python FILE RECIPE MODEL SAMPLES.npz TARGET.onnx EFFORT`; the last line of output says what came of it."""
    name, model, samples, target, effort = sys.argv[1:]
    result: dict[str, object] = {"version": f"{package} {importlib.metadata.version(package)}"}
    try:
        job = Job(Path(model), read_samples(Path(samples)), Path(target), float(effort))
        started = time.monotonic()
        note = recipes[name](job)
        result |= {"seconds": time.monotonic() - started, **({"note": note} if note else {})}
    except Exception as error:  # a failure is the finding
        result["error"] = f"{type(error).__name__}: {' '.join(str(error).split())}"
    print(json.dumps(result), flush=True)
