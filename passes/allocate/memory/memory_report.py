"""What the delivered file needs of memory: its weights as they are loaded, and at most in a run of one sample."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import onnxruntime as ort

from ptqc.budget import MemoryBudget
from ptqc.codegen.onnxruntime.memory import loaded_bytes
from ptqc.errors import Missed
from ptqc.evaluation.speed import one_sample
from ptqc.execution.memory import run_bytes
from ptqc.execution.onnxruntime import Feeds, Runner, is_lean, tensors_of
from ptqc.execution.profile import Subject
from ptqc.execution.shapes import observed_shapes
from ptqc.ir.external import is_in_files
from ptqc.notes import Level, Note
from ptqc.passes.allocate.fit import Fitted
from ptqc.passes.allocate.job import Job
from ptqc.passes.allocate.latency.times import everything_of
from ptqc.passes.allocate.memory_model import MemoryModel
from ptqc.passes.quantize.phases import Decided

STEP = "memory"
RUNTIME = f"ONNX Runtime {ort.__version__}"


@dataclass(frozen=True)
class MemoryReport:
    """document: for the manifest."""

    document: Mapping[str, Any]
    notes: tuple[Note, ...] = ()

    def check(self) -> None:
        """Raises Missed where the file needs more than its budget."""
        if self.notes:
            raise Missed(f"{self.notes[0].message}; without strict the file is delivered all the same")


def memory_model(decided: Decided) -> MemoryModel:
    """What the memory of a choice of activations is predicted from, with the shapes of one sample."""
    model, feeds = decided.model, sample_of(decided)
    values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    names = [str(value.name) for value in values if value.is_graph_output() or value.consumers()]
    shapes = _shapes(model, feeds, [name for name in names if name not in feeds])
    return MemoryModel.of(model, everything_of(decided), {name: shapes[name] for name in names if name in shapes})


def _shapes(model: ir.Model, feeds: Feeds, inner: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
    """Of inputs and inner values; of a model beyond memory not all values are there at a time."""
    if is_in_files(model):
        return observed_shapes(model, feeds)
    found = {**feeds, **tensors_of(Runner(model, inner).run(feeds, inner))}
    return {name: array.shape for name, array in found.items()}


def sample_of(decided: Decided) -> Feeds:
    """The feeds of one sample, or of as many as the model takes at once."""
    return one_sample(decided.model, decided.held_back)[0]


def memory_report(job: Job, fitted: Fitted) -> MemoryReport:
    """The bytes of a delivered file, with what was predicted of a run."""
    decided, predicted = job.decided, memory_model(job.decided)
    proto, quantized = fitted.exported.proto, fitted.plan.params
    if is_lean(proto, decided.model):  # it is not loaded as a whole, all of its weights in float
        formats = sum(candidate.memory for candidate in fitted.problem.chosen(fitted.plan.formats))
        weights, measured = predicted.loaded(quantized) + formats, None
    else:
        weights, measured = loaded_bytes(proto), run_bytes(Subject(proto, sample_of(decided)))
    expected = predicted.peak(quantized) - predicted.loaded(quantized)
    needed, budget = weights + (expected if measured is None else measured), job.budgets.memory
    document = {
        "runtime": RUNTIME,
        "weights_bytes": weights,
        "run_bytes": measured,
        "predicted_run_bytes": expected,
        "needed_bytes": needed,
        "budget": None if budget is None else str(budget),
        "limit_bytes": None if budget is None else budget.bytes,
    }
    return MemoryReport(document, () if budget is None else _over(needed, budget))


def _over(needed: int, budget: MemoryBudget) -> tuple[Note, ...]:
    if needed <= budget.bytes:
        return ()
    message = f"the file needs {needed:,} bytes when it is loaded and run, over the budget of {budget}: give more"
    return (Note(STEP, "", message, Level.WARNING),)
