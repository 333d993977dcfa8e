"""The gradient steps behind reconstruction, where torch is installed, can run the model, and there is enough to fit.

A classifier gives a few numbers per sample for millions of weights: whatever is tuned on some hundred samples then only
learns them by heart (mobilenet_v1 at 13 %: loss 0.059 before and 0.065 after on unseen samples). Dense outputs, as of
super resolution, give millions of numbers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import onnx_ir as ir

from ptqc.errors import Unsupported
from ptqc.execute.onnxruntime import Runner
from ptqc.notes import Level, Note, out_of_time
from ptqc.passes.context import Context
from ptqc.plan import Plan
from ptqc.solutions import Tuned

STEP = "tune"
# Numbers in the outputs of all tuning samples for each number in the weights.
ENOUGH = 4.0


def advanced(
    model: ir.Model, context: Context, plan: Plan, tuned: Tuned, loss: str = "auto"
) -> tuple[Tuned, list[Note]]:
    """The plan's numbers after every gradient step that lowered the held-back loss; else as they were, and why."""
    if find_spec("torch") is None:
        return tuned, [_declined("torch is not installed: pip install 'ptqc[torch]'")]
    if not context.deadline.leaves(0):
        return tuned, [out_of_time("no gradient steps")]
    if (share := _outputs_per_weight(model, context)) < ENOUGH:
        return tuned, [
            _declined(f"the samples' outputs hold {share:.2g} numbers for each weight, too few to learn from")
        ]
    from ptqc.passes.tune_outputs import TuneOutputs

    try:
        with _one_torch_thread():
            return TuneOutputs(loss=loss).apply(model, context, plan, tuned)
    except Unsupported as reason:
        return tuned, [_declined(str(reason))]


def _outputs_per_weight(model: ir.Model, context: Context) -> float:
    outputs = Runner(model).run(context.tuning[0])
    values = sum(array.size for array in outputs.values() if array.dtype.kind == "f")
    return values * len(context.tuning) / max(sum(weight.size for weight in context.weights), 1)


def _declined(reason: str) -> Note:
    return Note(STEP, "", f"no gradient steps: {reason}", Level.SKIPPED)


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Rounding of sums, and with it the delivered bytes, depends on the number of threads."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
