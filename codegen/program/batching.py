"""How a library takes samples: along the model's batch axis, or each as one run of the model.

Where the first axis is the batch in every value, kernels take any number of samples along it. Where it is moved, merged
with another one or not there, a sample is a whole run with all axes, and kernels take any number of runs. Several
samples at once are then as good as one after the other only if they have nothing to do with each other in the model:
ONNX Runtime is asked.

Where a model leaves more axes than the batch open, a library takes any lengths of them if all of its operators can;
then, too, a sample is a whole run.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self, TypeVar

import numpy as np
import onnx_ir as ir

from ptqc.codegen.onnxruntime.export import Exported
from ptqc.codegen.program.inputs import edges, extents
from ptqc.codegen.program.probing import Probe, has_batch, longest_first, open_axes, varied
from ptqc.codegen.program.program import slides
from ptqc.errors import Interrupted, NoKernel
from ptqc.execution.onnxruntime import Feeds, Runner, session_options
from ptqc.ir.nodes import has_open_batch
from ptqc.ir.operators import Operator, Trait, keeps_codes, known
from ptqc.ir.sites import IN_FLOAT
from ptqc.runtime.lengths import Shape, SymDim, at, names_of, read, written

Output = TypeVar("Output")

# How far outputs may differ, as a share of their root mean square, because codes flip where sums are reordered.
TOLERANCE = 0.1


@dataclass(frozen=True)
class Batching:
    """batch: its size in the runs that all sizes are taken from; None: a sample is such a run.

    is_any: whether the library takes any number of samples at once; else what it was built for. varies: whether axes
    that the model leaves open may have any length. reason: why they may not, where it leaves some open.
    """

    batch: int | None
    is_any: bool = True
    varies: bool = False
    reason: str = ""


def batched(
    model: ir.Model,
    exported: Exported,
    samples: Sequence[Feeds],
    make: Callable[[Batching, Sequence[Feeds]], Output],
    *,
    may_vary: bool = False,
) -> Output:
    """What `make` gives for samples along the batch, or run by run where there is none or a node then has no kernel.

    may_vary: whether `make` is to be tried with varying lengths first. Raises NoKernel where samples of several sizes
    need these and a node has no kernel then.
    """
    reason = ""
    if may_vary and open_axes(model, samples):
        batching, alone = run_by_run(model, exported, longest_first(model, samples))
        try:
            return make(replace(batching, varies=True), alone)
        except NoKernel as error:
            if len({tuple(array.shape for array in feeds.values()) for feeds in alone}) > 1:
                message = "the samples have different sizes, which a library takes where its operators do"
                raise NoKernel(f"{message}: {error}") from error
            reason = str(error)
    along = along_the_batch(model, samples[0])
    if along is not None:
        with suppress(NoKernel):
            return make(replace(along, reason=reason), samples)
    batching, alone = run_by_run(model, exported, samples)
    return make(replace(batching, reason=reason), alone)


def along_the_batch(model: ir.Model, feeds: Feeds) -> Batching | None:
    """The batch as the first axis of the first input; None without one."""
    shape = feeds[str(model.graph.inputs[0].name)].shape if model.graph.inputs else ()
    return Batching(shape[0]) if shape else None


def run_by_run(model: ir.Model, exported: Exported, samples: Sequence[Feeds]) -> tuple[Batching, list[Feeds]]:
    """Samples as runs, one sample each where the model leaves the size of a common first axis of its inputs open.

    Exporters may call that axis otherwise in each input; it is then common if samples are independent along it.
    """
    is_told = has_open_batch(model.graph.inputs)
    if is_told or has_batch(model, samples):
        alone = [{name: value[:1] for name, value in feeds.items()} for feeds in samples]
        is_any = _are_independent(exported, alone)
        if is_told or is_any:
            return Batching(None, is_any=is_any), alone
    return Batching(None, is_any=False), list(samples)


def _are_independent(exported: Exported, alone: Sequence[Feeds]) -> bool:
    """Whether ONNX Runtime gives each sample of a batch what it gives it alone, whatever the others are."""
    outputs = dict(edges(extents(alone)))
    first, second, third = alone[0], outputs["random"], outputs["highest"]
    try:
        runner = Runner(exported.proto)
        single = [runner.run(feeds) for feeds in (first, second, third)]
        one, other = (runner.run(_joined(feeds)) for feeds in ((first, second, third), (first, third, second)))
    except (OSError, Interrupted):  # of the disk, not of the model
        raise
    except Exception:  # whatever a model has against several samples
        return False
    return all(_is_alike([result[name] for result in single], one[name], other[name]) for name in one)


def _joined(feeds: Sequence[Feeds]) -> Feeds:
    return {name: np.concatenate([each[name] for each in feeds]) for name in feeds[0]}


def _is_alike(single: Sequence[np.ndarray], one: np.ndarray, other: np.ndarray) -> bool:
    """Samples alone, in a batch, and in the same batch with the last two exchanged."""
    if any(result.shape != (len(single), *single[0].shape[1:]) for result in (one, other)):
        return False
    if any(len(result) != 1 or result.shape != single[0].shape for result in single):
        return False
    same = np.array_equal(one[0], other[0], equal_nan=one.dtype.kind == "f")
    return same and all(_is_close(result[0], one[place]) for place, result in enumerate(single))


def _is_close(wanted: np.ndarray, result: np.ndarray) -> bool:
    if wanted.dtype.kind != "f":
        return bool(np.mean(wanted != result) <= TOLERANCE)
    finite = np.isfinite(wanted)
    if not np.array_equal(finite, np.isfinite(result)):
        return False
    a, b = wanted[finite].astype(np.float64), result[finite].astype(np.float64)
    return bool(np.square(a - b).sum() <= TOLERANCE**2 * np.square(a).sum())


@dataclass(frozen=True)
class Seen:
    """Shapes and types of all values of a graph in one run. fixed: inputs that are always these.

    lengths: what the shapes are made of, where they vary. points: lengths of several runs, this one's in front.
    """

    shapes: Mapping[str, Shape]
    dtypes: Mapping[str, str]
    fixed: Mapping[str, np.ndarray] = field(default_factory=dict)
    lengths: tuple[SymDim, ...] = ()
    points: tuple[Mapping[str, int], ...] = ()

    @classmethod
    def of(cls, model: ir.Model, feeds: Feeds, fixed: Mapping[str, np.ndarray]) -> Self:
        """What ONNX Runtime makes of the inputs."""
        tensors = _run_of(model)(feeds)
        return cls(_shapes(tensors), _dtypes(tensors), fixed)

    @classmethod
    def varied(cls, model: ir.Model, samples: Sequence[Feeds], fixed: Mapping[str, np.ndarray]) -> Self:
        """The same of inputs whose open axes vary. Raises NoKernel where none can."""
        run = _run_of(model)
        probe = Probe(samples[0], open_axes(model, samples), lambda feeds: _shapes(run(feeds)))
        result = varied(probe, lambda shapes: _of_planes(model, shapes), lambda empty: _are_moved(model, empty))
        return cls(result.shapes, _dtypes(run(samples[0])), fixed, result.lengths, result.points)

    def at(self, lengths: Mapping[str, int]) -> Self:
        """The shapes for some lengths."""
        shapes = {name: tuple(at(size, lengths) for size in shape) for name, shape in self.shapes.items()}
        return replace(self, shapes=shapes, lengths=(), points=())

    def other_lengths(self) -> Iterator[dict[str, int]]:
        """Lengths of further runs that a library is compared in: the least, more than was seen, and some of both."""
        if not self.lengths:
            return
        pairs = [(each.name, each.least, 2 * each.seen + 1) for each in self.lengths]
        yield {name: least for name, least, _ in pairs}
        yield {name: more for name, _, more in pairs}
        if len(pairs) > 1:
            yield {name: (least, more)[place % 2] for place, (name, least, more) in enumerate(pairs)}

    def other_shapes(self, inputs: Iterable[str]) -> dict[str, dict[str, tuple[int, ...]]]:
        """Shapes of inputs in such runs, which are called by their lengths."""
        results = {}
        for lengths in self.other_lengths():
            sized = self.at(lengths).shapes
            results[", ".join(f"{name} = {size}" for name, size in lengths.items())] = {
                name: sized[name] for name in inputs
            }
        return results

    def to_json(self) -> dict[str, Any]:
        """The document for a job file."""
        entries = {name: {"object": array.tolist(), "dtype": str(array.dtype)} for name, array in self.fixed.items()}
        shapes = {name: list(map(written, shape)) for name, shape in self.shapes.items()}
        lengths = [asdict(length) for length in self.lengths]
        return {"shapes": shapes, "dtypes": self.dtypes, "fixed": entries, "lengths": lengths, "points": self.points}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`."""
        shapes = {name: tuple(map(read, shape)) for name, shape in document["shapes"].items()}
        fixed = {name: np.array(**entry) for name, entry in document["fixed"].items()}
        lengths = tuple(SymDim(**entry) for entry in document["lengths"])
        return cls(shapes, document["dtypes"], fixed, lengths, tuple(document["points"]))


def _run_of(model: ir.Model) -> Callable[[Feeds], dict[str, np.ndarray]]:
    """What gives all tensors of a model for inputs."""
    outputs = (value for node in model.graph for value in node.outputs)
    inside = [str(value.name) for value in outputs if value.name and value.dtype != ir.DataType.BFLOAT16]
    runner = Runner(model, inside, session_options(optimize=False))

    def run(feeds: Feeds) -> dict[str, np.ndarray]:
        values = {**runner.run(feeds), **feeds}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}

    return run


def _shapes(tensors: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _dtypes(tensors: Mapping[str, np.ndarray]) -> dict[str, str]:
    return {name: str(tensor.dtype) for name, tensor in tensors.items()}


def _are_moved(model: ir.Model, names: Collection[str]) -> bool:
    """Whether nothing is done with values but that they are moved, converted and measured, or unpacked as caches."""
    readers = (node for node in model.graph if any(v is not None and v.name in names for v in node.inputs))
    return all(keeps_codes(node) or IN_FLOAT in node.metadata_props or _is_harmless(known(node)) for node in readers)


def _is_harmless(operator: Operator | None) -> bool:
    return operator is not None and not operator.traits.isdisjoint((Trait.CONVERTS, Trait.MEASURES, Trait.RESHAPES))


def _of_planes(model: ir.Model, shapes: Mapping[str, Shape]) -> set[str]:
    """The lengths that windows slide over, which have one size."""
    planes = [node.inputs[0] for node in model.graph if slides(node)]
    return {name for value in planes if value is not None for name in names_of(shapes[str(value.name)])}
