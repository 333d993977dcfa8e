"""What to measure on: the project's own networks and, where they are at hand, real models with labelled data.

A folder of real models has a `tasks.py` with a dictionary TASKS of objects with `path`, `unit`, `float_score`,
`calibration(n)` -> list of single-sample feeds and `score(run)`, where run(feeds) gives the list of outputs. It is
PTQC_SHARED_DATA, or shared/data beside the repository. An ONNX file is a task too, without data, for its speed.
"""

import importlib.util
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
from harness import ROOT, Feeds, Run, manifest

MODELS = ROOT / "models"
CLASS_UNITS = frozenset({"top-1 %", "tag accuracy %", "nat/token"})
LOWER_IS_BETTER = frozenset({"nat/token"})


@dataclass(frozen=True)
class Task:
    """A float model with its data.

    calibration(n): at most n feeds of one sample each, unlabelled. score(run): the figure in `unit` on data that was
    never calibrated on. float_score: what the float model is known to get.
    """

    name: str
    path: Path
    calibration: Callable[[int], list[Feeds]]
    score: Callable[[Run], float]
    unit: str
    float_score: float
    higher_is_better: bool

    @property
    def has_classes(self) -> bool:
        """Whether the first output holds class scores on its last axis."""
        return self.unit in CLASS_UNITS


def all_tasks() -> dict[str, Task]:
    """Every task whose model is at hand, the project's own first."""
    tasks = {**_own(), **_shared()}
    return {name: task for name, task in tasks.items() if task.path.is_file()}


def chosen(names: str | None) -> list[Task]:
    """The tasks named in a comma-separated list, where an ONNX file is one without a score; all without a list.

    Exits with the known names for an unknown one.
    """
    known = all_tasks()
    wanted = names.split(",") if names else list(known)
    known |= {name: _plain(name) for name in wanted if Path(name).suffix == ".onnx" and Path(name).is_file()}
    if unknown := [name for name in wanted if name not in known]:
        raise SystemExit(f"unknown task {', '.join(unknown)}; known: {', '.join(known)}")
    return [known[name] for name in wanted]


def task_of(artifact: Path, tasks: Iterable[Task]) -> Task | None:
    """The task that an artifact was compiled from, by the name of the model's file."""
    source = manifest(artifact)["source"]["name"]
    return next((task for task in tasks if task.path.name == source), None)


def padded(task: Task, length: int) -> Task:
    """The same with all samples filled up with zeros to one length, along their last axis."""

    def filled(sample: Feeds) -> Feeds:
        return {name: np.pad(array, [(0, 0), (0, length - array.shape[-1])]) for name, array in sample.items()}

    return replace(
        task,
        calibration=lambda count: [filled(sample) for sample in task.calibration(count)],
        score=lambda run: task.score(lambda sample: run(filled(sample))),
    )


def _plain(name: str) -> Task:
    """A model for its speed only, on normal numbers."""
    return Task(name, Path(name), partial(_normal, name), _no_score, "", 0.0, True)


def _normal(path: str, count: int) -> list[Feeds]:
    graph = onnx.load(path, load_external_data=False).graph
    weights, random = {weight.name for weight in graph.initializer}, np.random.default_rng(0)
    shapes = {
        value.name: [size.dim_value or 1 for size in value.type.tensor_type.shape.dim]
        for value in graph.input
        if value.name not in weights
    }
    return [
        {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()} for _ in range(count)
    ]


def _no_score(_run: Run) -> float:
    raise ValueError("a model without data has no score")


def _own() -> dict[str, Task]:
    catalogue = _module("ptqc_models_catalogue", MODELS / "catalogue.py")
    evaluation = _module("ptqc_models_evaluation", MODELS / "evaluation.py")
    networks = catalogue.networks()
    return {name: _own_task(networks[name], data) for name, data in evaluation.TASKS.items()}


def _own_task(network: Any, data: Any) -> Task:
    calibration, score = partial(_split, data.calibration), partial(_only_output, data.score)
    return Task(network.name, network.path, calibration, score, data.unit, network.score, True)


def _split(batch: Callable[[int], Feeds], count: int) -> list[Feeds]:
    """Cut one batch into samples."""
    arrays = batch(count)
    samples = min(len(array) for array in arrays.values())
    return [{name: array[k : k + 1] for name, array in arrays.items()} for k in range(min(count, samples))]


def _only_output(score: Callable[[Any], float], run: Run) -> float:
    return score(lambda feeds: run(feeds)[0])


def _shared() -> dict[str, Task]:
    folder = Path(os.environ.get("PTQC_SHARED_DATA") or ROOT.parent / "shared" / "data")
    if not (folder / "tasks.py").is_file():
        return {}
    shared = _module("shared_tasks", folder / "tasks.py").TASKS
    return {name: _shared_task(name, data) for name, data in shared.items()}


def _shared_task(name: str, data: Any) -> Task:
    higher = data.unit not in LOWER_IS_BETTER
    return Task(name, data.path, data.calibration, data.score, data.unit, data.float_score, higher)


def _module(name: str, path: Path) -> ModuleType:
    """A module by its file; what it imports from beside itself is found too."""
    if name in sys.modules:
        return sys.modules[name]
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
