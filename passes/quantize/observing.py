"""Running calibration samples in batches, and adding what layers read to the second moments of their weights."""

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ptqc.calibration.runnable import explaining
from ptqc.calibration.samples import InputSpec, Samples
from ptqc.errors import ModelError
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.execution.tensors import largest
from ptqc.ir.layers import Layer
from ptqc.passes.quantize.moments import TOGETHER, ColumnSample, Moments
from ptqc.utils.parallel import in_order

# Bytes of the activations that are observed of one batch.
BATCH_BYTES = 256 * 2**20
LARGEST_BATCH = 8
# Losses are sums of (weight · input)², which float32 holds up to 3e38.
LARGEST_WEIGHT, LARGEST_INPUT = 1e6, 1e12


def batches(
    runner: Runner, samples: Samples, taps: Sequence[str], sample_bytes: int, inputs: Sequence[InputSpec]
) -> Iterator[tuple[int, Feeds, Feeds]]:
    """Each batch with the number of its first row, and the tapped values, which are let go of before the next run."""
    size = int(np.clip(BATCH_BYTES // max(sample_bytes, 1), 1, LARGEST_BATCH))
    start = 0
    for feeds in samples.batches(size):
        with explaining(runner, samples, inputs):
            values = runner.run(feeds, taps) if taps else {}
        yield start, feeds, values
        values.clear()
        start += rows_of(samples, feeds)


def rows_of(samples: Samples, feeds: Feeds) -> int:
    """How many samples a batch has."""
    return len(next(iter(feeds.values()))) if samples.batchable else 1


def thinned(columns: Mapping[str, ColumnSample], part: float) -> Mapping[str, ColumnSample]:
    """This part of the columns of every layer."""
    if part == 1:
        return columns
    return {name: replace(each, positions=max(1, int(part * each.positions))) for name, each in columns.items()}


def accumulate(
    moments: dict[str, Moments],
    layers: Sequence[Layer],
    columns: Mapping[str, ColumnSample],
    values: Feeds,
    start: int,
    means_only: Collection[str] = (),
) -> None:
    """Add the inputs of layers in a batch to the moments of their weights; columns: by layer. start: its first row.

    Weights that are multiplied with the same share their moments, so always the same layers must be given; those whose
    input is not among the values are left out. means_only: weights whose squares are added up later. Raises ModelError
    where inputs are too large to be squared.
    """
    by_weight: dict[str, list[Layer]] = {}
    for layer in layers:
        by_weight.setdefault(layer.weight, []).append(layer)
    sharing: dict[tuple[Hashable, ...], list[str]] = {}
    for weight, own in by_weight.items():
        if any(layer.input in values for layer in own):
            sharing.setdefault((weight in means_only, *(layer.reading for layer in own)), []).append(weight)

    def added(weights: Sequence[str]) -> Moments:
        first, *_ = weights
        result = moments.get(first)
        for layer in by_weight[first]:
            if layer.input not in values:
                continue
            check_size("layer input", layer.input, values[layer.input], LARGEST_INPUT)
            drawn = columns[layer.name].inputs(values[layer.input], start)
            result = result or Moments.empty(drawn.shape[0], drawn.shape[1], squares=first not in means_only)
            result.add(drawn)
        assert result is not None
        return result

    several = list(sharing.values())
    grown = in_order(added, several, lambda weights: _bytes(by_weight[weights[0]][0], columns))
    for weights, result in zip(several, grown, strict=True):
        moments.update(dict.fromkeys(weights, result))


def check_size(kind: str, name: str, values: np.ndarray | None, most: float) -> None:
    """Raises ModelError where values are too large; what is NaN or infinite counts for nothing."""
    reach = 0.0 if values is None else largest(values)
    if values is not None and not np.isfinite(reach):
        reach = largest(values[np.isfinite(values)])
    if reach > most:
        raise ModelError(f"{kind} {name!r} reaches {reach:.0e}, at most {most:.0e} can be measured: scale the model")


def rows_left_out(layers: Sequence[Layer], *splits: Mapping[str, Moments]) -> dict[str, tuple[int, int]]:
    """How many rows of what layers read were not finite, and of how many, by the name of what they read."""
    left_out: dict[str, tuple[int, int]] = {}
    for layer in layers:
        several = [moments[layer.weight] for moments in splits if layer.weight in moments]
        if left := sum(each.left_out for each in several):
            left_out.setdefault(layer.input, (left, left + sum(each.count for each in several)))
    return left_out


def _bytes(layer: Layer, columns: Mapping[str, ColumnSample]) -> int:
    """Bytes that adding a batch to a layer's moments takes: new columns, columns held back, products; each twice."""
    positions = columns[layer.name].positions if layer.name in columns else 0
    return 8 * layer.groups * (layer.width**2 + (TOGETHER + LARGEST_BATCH * positions) * layer.width)
