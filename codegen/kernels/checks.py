"""What native libraries refuse of a model, before anything is measured or built. target: whose library it is."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ptqc.codegen.kernels.process import Work
from ptqc.codegen.program.batching import Batching, Seen
from ptqc.codegen.program.expansion import expanded, is_static
from ptqc.codegen.program.folding import SIZES, entering
from ptqc.codegen.program.probing import longest_first, open_axes
from ptqc.codegen.program.program import slides
from ptqc.codegen.program.recurrent import is_recurrent, refusal_by_form
from ptqc.codegen.program.specializing import specialized
from ptqc.errors import ModelError, NoKernel, TargetError
from ptqc.execution.onnxruntime import Feeds
from ptqc.ir.lowered import Lowered
from ptqc.ir.nodes import constant, output_name
from ptqc.ir.operators import is_float
from ptqc.ir.recorded import with_draws_fed
from ptqc.utils.scratch import scratch

LOOK_UP_TIME_LIMIT = 120.0
# Of the inputs of a sample, beyond axis 0.
RowShapes = tuple[tuple[int, ...], ...]
# A process of its own: looking them up loads TVM.
OPERATORS = Work("ptqc.codegen.kernels.lowering:operators")


def check_sizes(row_shapes: Collection[object], target: str) -> None:
    """Raises TargetError for samples of several sizes. row_shapes: those that they have beyond axis 0."""
    if len(row_shapes) > 1:
        raise TargetError(
            f"the {target} target is built for one size of samples, and these have {len(row_shapes)}: give samples of "
            "one size (images with --resize and --crop, or --fit letterbox), or leave it out"
        )


def check_lengths(row_shapes: Collection[RowShapes], model: ir.Model, target: str) -> None:
    """Raises TargetError for samples of several sizes where windows slide over these; axes of texts may vary.

    So for samples without elements along an axis that needs some, as a run of the model with other sizes shows.
    """
    if any(map(slides, model.graph)):
        check_sizes(row_shapes, target)
    if any(0 in shape for shapes in row_shapes for shape in shapes):
        _check_empty(row_shapes, model, target)


def _check_empty(row_shapes: Collection[RowShapes], model: ir.Model, target: str) -> None:
    inputs = [value for value in model.graph.inputs if value.name not in model.graph.initializers]
    samples = [_zeros(inputs, shapes) for shapes in sorted(row_shapes)]
    groups = open_axes(model, samples)
    try:
        lengths = Seen.varied(model, longest_first(model, samples), {}).lengths
    except (NoKernel, ModelError):  # what does not vary is told when it is built; some load only after rewrites
        return
    least = {length.name: length.least for length in lengths}
    for group in groups:
        name, axis = group.places[0]
        empty = next((feeds[name].shape for feeds in samples if not group.size(feeds)), None)
        if empty is not None and least.get(group.name, 0):
            raise TargetError(
                f"the {target} target needs {least[group.name]} or more along axis {axis} of input {name!r}, and there "
                f"are samples of shape {empty}: leave these samples out, or the target"
            )


def _zeros(inputs: Sequence[ir.Value], row_shapes: RowShapes) -> Feeds:
    """A sample of these shapes beyond axis 0."""
    feeds = {}
    for value, shape in zip(inputs, row_shapes, strict=True):
        first = value.shape[0] if value.shape else None
        rows = () if not value.shape else (first if isinstance(first, int) else 1,)
        kind = np.dtype(str) if value.dtype == ir.DataType.STRING or value.dtype is None else value.dtype.numpy()
        feeds[str(value.name)] = np.zeros((*rows, *shape), kind)
    return feeds


def check_model(model: ir.Model, target: str, *, unrolls: bool = False) -> ir.Model:
    """The model with operators that have no kernel written out as others. Raises TargetError for what is refused.

    unrolls: whether recurrent nodes are among these.
    """
    model = with_draws_fed(model)
    _check_interface(model, target)
    result = expanded(model, unrolls=unrolls)
    _check_divisors(result, target)
    return result


def specialize(
    lowered: Lowered, samples: Sequence[Feeds], batching: Batching, target: str, *, unrolls: bool = False
) -> Lowered:
    """The graph as it is for samples of these sizes, checked again as by `check_model`."""
    model = specialized(lowered.model, samples, batching, unrolls=unrolls)
    return lowered if model is lowered.model else replace(lowered, model=check_model(model, target, unrolls=unrolls))


def check_kernels(model: ir.Model, target: str) -> None:
    """Raises TargetError where the native library cannot take the model, or has no kernel of an operator that it needs.

    Only what is certain is refused: operators that read numbers computed from the model's inputs. What sizes may still
    decide is not.
    """
    expanded = check_model(model, target)
    known = _known(target)
    for node in computing(expanded):
        reason = None if not node.domain and node.op_type in known else "the operator is not known to it"
        if is_recurrent(node):
            reason = refusal_by_form(node)
        if reason is not None:
            raise NoKernel(f"the {target} target has no kernel for {node.op_type} {output_name(node)}: {reason}")


def computing(model: ir.Model) -> Iterator[ir.Node]:
    """Nodes that make floats of floats that are not constant."""
    moving = {value for value in model.graph.inputs if constant(value) is None}
    for node in model.graph:
        moved = [] if node.op_type in SIZES else [v for v in entering(node) if v is not None and v in moving]
        if not moved:
            continue
        moving.update(node.outputs)
        if any(map(is_float, moved)) and any(map(is_float, node.outputs)):
            yield node


def _known(target: str) -> set[str]:
    """Operators that have kernels. Raises TargetError where TVM does not load."""
    with scratch() as folder:
        return set(OPERATORS.run(Path(folder), target, LOOK_UP_TIME_LIMIT)["operators"])


def _check_divisors(model: ir.Model, target: str) -> None:
    """Refuse what would end the process once an input is zero. Raises NoKernel."""
    for node in model.graph:
        value = node.inputs[-1] if node.op_type in ("Div", "Mod") else None
        if value is not None and value.dtype is not None and value.dtype.is_integer() and not is_static(value):
            raise NoKernel(
                f"the {target} target has no kernel for {node.op_type} {node.outputs[0].name}: integers are divided by "
                f"{value.name}, which may be zero"
            )


def _check_interface(model: ir.Model, target: str) -> None:
    """Refuse what no library can take or give. Raises TargetError."""
    for value in (*model.graph.inputs, *model.graph.outputs):
        if not isinstance(value.type, ir.TensorType) or value.dtype == ir.DataType.STRING:
            raise TargetError(f"the {target} target takes and gives numeric tensors; {value.name} is {value.type}")
