"""Which kind every judged output of a model is of: as the user says, else by graph and data.

Those of floats are judged; where there are none, those of integers.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from ptqc.errors import ModelError, UsageError
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.kv_cache.form import unpacked_feeds
from ptqc.kv_cache.known import forms_of_outputs
from ptqc.kv_cache.known import to_json as forms_to_json
from ptqc.losses.axes import channel_axis, groups
from ptqc.losses.base import Group, OutputFacts, OutputKind, as_real
from ptqc.losses.boxes import Boxes
from ptqc.losses.classes import Logits, Probabilities
from ptqc.losses.detection import Detection
from ptqc.losses.embedding import Embedding
from ptqc.losses.features import Features
from ptqc.losses.finite_rows import finite_along, without_flawed_slices
from ptqc.losses.heads import with_boxes
from ptqc.losses.labels import Labels
from ptqc.losses.maps import Map
from ptqc.losses.packed_cache import PackedCache
from ptqc.losses.regression import Regression
from ptqc.losses.scores import Scores
from ptqc.losses.state import State
from ptqc.losses.trace import sources_of, trace
from ptqc.losses.words import CACHES, STATES, says, words

Outputs = Mapping[str, np.ndarray]
Kinds = Mapping[str, OutputKind]
# In the order in which an output is tried; the last one takes every output.
KNOWN: tuple[type[OutputKind], ...] = (
    PackedCache,
    Labels,
    State,
    Probabilities,
    Scores,
    Detection,
    Boxes,
    Embedding,
    Logits,
    Features,
    Map,
    Regression,
)
BY_NAME = {kind.name: kind for kind in KNOWN}
AUTO = "auto"
# Other names that a user may say.
ALSO = {"kl": Logits.name, "mse": Regression.name}
NAMES = (AUTO, *ALSO, *BY_NAME)
CACHE_AXES = 4
PICTURE_BYTES = 2  # integers of so many bytes are the numbers that they say, others stand for something


def check(model: ir.Model, requested: str | Mapping[str, str]) -> None:
    """Whether every output that is spoken of exists. Raises UsageError that names those that do."""
    known = [str(value.name) for value in model.graph.outputs]
    for name in () if isinstance(requested, str) else requested:
        if name not in known:
            raise UsageError(f"loss: the model has no output {name!r}; its outputs: {', '.join(known)}")


def recognize(
    model: ir.Model, feeds: Feeds, references: Sequence[Outputs], requested: str | Mapping[str, str] = AUTO
) -> dict[str, OutputKind]:
    """The kind of every output that is judged, in the model's order.

    feeds: one sample, with which shapes are found out. references: outputs of some samples. requested: a kind for all
    outputs, or for some by name. Raises ModelError where the float model gives NaN or infinities.
    """
    result = facts(model, feeds, references)
    requests = {name: requested if isinstance(requested, str) else requested.get(name, AUTO) for name in result}
    kinds = {}
    for name, known in result.items():
        if requests[name] == AUTO:
            kinds[name] = next(kind for one in KNOWN if (kind := one.recognize(known)) is not None)
        else:
            kinds[name] = _asked(known, requests[name])
    return with_boxes(kinds, result, {name for name in result if requests[name] == AUTO})


def _asked(known: OutputFacts, name: str) -> OutputKind:
    """What the user says; probabilities stay such where that is "kl"."""
    if name == "kl" and (result := Probabilities.recognize(known)) is not None:
        return result
    return BY_NAME[ALSO.get(name, name)].asked(known)


def facts(model: ir.Model, feeds: Feeds, references: Sequence[Outputs]) -> dict[str, OutputFacts]:
    """What is known of every output that is judged."""
    forms = forms_of_outputs(model)
    references = [unpacked_feeds(outputs, forms) for outputs in references]
    check_finite(model, references)
    values = _with_loss(model, references)
    shapes = _shapes(model, feeds, list(values.values()))
    carried = _carried(model, list(values.values()))
    inputs = tuple(shape_of(value) for value in model.graph.inputs)
    result = {}
    for name, value in values.items():
        reals = (as_real(outputs[name]) for outputs in references)
        arrays = tuple(array for array in reals if np.isfinite(array).any())
        dense = [without_flawed_slices(array) for array in arrays]
        traced = None if name in forms else trace(value, shapes)  # what is packed has other axes
        axis = channel_axis(traced, shape_of(value), dense)
        rows = tuple(finite for array in arrays if (finite := finite_along(axis, array)[0]).size)
        arrays = rows or tuple(dense)
        result[name] = OutputFacts(
            name,
            shape_of(value),
            arrays,
            axis,
            groups(traced, axis, arrays),
            traced=traced is not None and traced.axis == axis,
            direct=traced is not None and traced.direct and traced.axis == axis,
            alone=len(values) == 1,
            carried=name in carried,
            packed=forms_to_json(forms[name]) if name in forms else None,
            inputs=inputs,
            labels=_are_labels(references[0][name]),
        )
    return result


def _are_labels(array: np.ndarray) -> bool:
    return array.dtype.kind == "b" or (array.dtype.kind in "iu" and array.dtype.itemsize > PICTURE_BYTES)


def _with_loss(model: ir.Model, references: Sequence[Outputs]) -> dict[str, ir.Value]:
    """Outputs that are tensors of floats, and not empty in all samples; where there are none, those of integers."""

    def has_loss(name: str, kinds: str) -> bool:
        arrays = [outputs.get(name) for outputs in references]
        fit = all(isinstance(array, np.ndarray) and array.dtype.kind in kinds for array in arrays)
        return fit and any(array is not None and array.size for array in arrays)

    named = {str(value.name): value for value in model.graph.outputs}
    floats = {name: value for name, value in named.items() if has_loss(name, "f")}
    return floats or {name: value for name, value in named.items() if has_loss(name, "iub")}


def check_finite(model: ir.Model, references: Sequence[Outputs]) -> None:
    """Raises ModelError where a float output has nothing but NaN and infinities."""
    for name in _with_loss(model, references):
        if not any(np.isfinite(outputs[name]).any() for outputs in references):
            raise ModelError(
                f"output {name!r} of the float model is NaN or infinite everywhere on the calibration samples, so no "
                "loss can be measured: check the samples and their preprocessing, or drop the output"
            )


def flawed_values(kinds: Kinds, references: Sequence[Outputs]) -> dict[str, tuple[int, int]]:
    """How many values of an output are NaN or infinite in the float model, and of how many, where some are."""
    result = {name: [outputs[name] for outputs in references] for name in kinds}
    counts = {name: sum(int(np.count_nonzero(~np.isfinite(a))) for a in arrays) for name, arrays in result.items()}
    return {name: (count, sum(a.size for a in result[name])) for name, count in counts.items() if count}


def shape_of(value: ir.Value) -> tuple[int | str | None, ...]:
    """Declared sizes; symbolic ones by name."""
    if value.shape is None:
        return ()
    return tuple(size if isinstance(size, int) else size.value for size in value.shape)


def _shapes(model: ir.Model, feeds: Feeds, outputs: Sequence[ir.Value]) -> dict[str, tuple[int, ...]]:
    """Shapes of what is between the outputs and the layers behind them, from one run; none where that fails."""
    names = sources_of(outputs)
    try:
        ran = Runner(model, names).run(feeds, names)
    except ModelError:  # an inner value that cannot be an output
        return {}
    return {name: array.shape for name, array in ran.items() if isinstance(array, np.ndarray)}


def states_of(model: ir.Model) -> dict[str, str]:
    """The input that takes an output of the run before, by the name of the output; only where the names tell it."""
    pairs = _pairs(model, model.graph.outputs)
    if len(pairs) == min(len(model.graph.inputs), len(model.graph.outputs)):
        return {}
    named = {output: read for output, read in pairs.items() if any(_likeness(read, output))}
    return {str(output.name): str(read.name) for output, read in named.items()}


def _carried(model: ir.Model, outputs: Sequence[ir.Value]) -> frozenset[str]:
    """Outputs that hand an input of their shape on, beside at least one input and one output that are not such.

    So do caches that a first run begins, for a model of another file, where there is another output beside them.
    """
    pairs = _pairs(model, outputs)
    result = {str(value.name) for value in outputs if value in pairs or _begins_cache(value)}
    computed = [value for value in model.graph.outputs if str(value.name) not in result]
    return frozenset(result) if computed and len(pairs) < len(model.graph.inputs) else frozenset()


def _pairs(model: ir.Model, outputs: Sequence[ir.Value]) -> dict[ir.Value, ir.Value]:
    """Outputs that hand an input on, each with that input."""
    free, pairs = list(model.graph.inputs), dict[ir.Value, ir.Value]()
    for output in outputs:
        fitting = [each for each in free if _hands_on(each, output)]
        if fitting:
            pairs[output] = max(fitting, key=partial(_likeness, output=output))
            free.remove(pairs[output])
    return pairs


def _likeness(read: ir.Value, output: ir.Value) -> tuple[bool, bool, bool]:
    """How the name of an input tells that it takes this output: state of next_state, state of stateN, h of hn."""
    one, other = str(read.name), str(output.name)
    return words(one) <= words(other), says(one, STATES), one[:1].lower() == other[:1].lower()


def _begins_cache(output: ir.Value) -> bool:
    """Whether its name and rank are those of keys or values, with heads, places and channels."""
    return len(shape_of(output)) == CACHE_AXES and says(str(output.name), CACHES)


def _hands_on(source: ir.Value, output: ir.Value) -> bool:
    """Whether both are of one type and rank, of sizes that may be equal, and their names go together."""
    one, other = shape_of(source), shape_of(output)
    if source.dtype != output.dtype or len(one) != len(other):
        return False
    if any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(one, other, strict=True)):
        return False
    numbers = {_numbers(value) for value in (source, output)} - {"", "0"}
    named = says(str(output.name), STATES) and len(numbers) < 2
    said = words(str(source.name))
    return named or (bool(said) and said <= words(str(output.name)))


def _numbers(value: ir.Value) -> str:
    """The digits of a name: past.3.key goes with present.3.key, h0 with hn."""
    return "".join(filter(str.isdigit, str(value.name)))


def to_json(kinds: Kinds) -> dict[str, Any]:
    """The kinds as a document for the store."""
    return {name: kind.to_json() for name, kind in kinds.items()}


def from_json(document: Mapping[str, Mapping[str, Any]]) -> dict[str, OutputKind]:
    """Inverse of `to_json`."""
    return {name: _kind(entry) for name, entry in document.items()}


def _kind(entry: Mapping[str, Any]) -> OutputKind:
    known = {key: value for key, value in entry.items() if key != "kind"}
    if "groups" in known:
        known["groups"] = tuple(Group(*group) for group in known["groups"])
    if "order" in known:
        known["order"] = tuple(known["order"])
    known |= {key: _kind(value) for key, value in known.items() if isinstance(value, Mapping)}
    return BY_NAME[entry["kind"]](**known)
