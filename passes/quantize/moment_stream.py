"""Second moments of a model beyond memory: the samples go through its graph once, block of weights by block.

What a block's layers read is computed from the values that the nodes before it left: these wait in files, in 16 bits.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from ptqc.calibration.inputs import input_specs
from ptqc.calibration.runnable import explaining
from ptqc.calibration.samples import Samples
from ptqc.errors import PtqcError
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.execution.tensors import Waiting
from ptqc.execution.walk import Piece, Slicer
from ptqc.ir.external import is_in_files
from ptqc.ir.layers import Layer, Weight
from ptqc.passes.quantize.moments import ColumnSample, Moments, bytes_of
from ptqc.passes.quantize.observing import BATCH_BYTES, LARGEST_BATCH, accumulate, batches, rows_of, thinned
from ptqc.passes.quantize.phases import AnalysisInput, CalibrationStats
from ptqc.utils.deadline import Deadline, Pace
from ptqc.utils.parallel import in_order, processors

# Second moments of a model's weights, some of them at a time.
#
# Those of all weights together may take more memory than the model. So weights that follow each other form blocks, and
# for each block the calibration set is run once more when its turn has come to be solved. Models beyond memory have
# another way, where there is nothing else to observe: see below.

# Bytes of the second moments of a block, on both splits of the calibration set; a block has at least one weight.
BLOCK_BYTES = 2**30
# The same where the model does not fit into memory.
SMALL_BLOCK_BYTES = 2**28
# Share of a batch's columns that are at least looked at; where there is no time for these, samples are left out.
LEAST_PART = 0.25


def blocks_of(setting: AnalysisInput) -> list[tuple[str, ...]]:
    """Names of weights that follow each other, whose moments are in memory at the same time."""
    room = SMALL_BLOCK_BYTES if is_in_files(setting.model) else BLOCK_BYTES
    return grouped(((weight.name, weight.readings, 2 * _bytes(weight)) for weight in setting.weights), room)


def grouped(needs: Iterable[tuple[str, Hashable, int]], room: int) -> list[tuple[str, ...]]:
    """Names that follow each other and together need at most `room` bytes, or a single one.

    needs: names with what they are about and its bytes, which count once for names about the same.
    """
    blocks: list[tuple[str, ...]] = [()]
    taken: dict[Hashable, int] = {}
    for name, subject, needed in needs:
        if blocks[-1] and sum((taken | {subject: needed}).values()) > room:
            blocks.append(())
            taken.clear()
        blocks[-1] += (name,)
        taken[subject] = needed
    return blocks


def _bytes(weight: Weight) -> int:
    return max((bytes_of(layer.groups, layer.width) for layer in weight.layers), default=0)


@dataclass(frozen=True)
class LaterMoments:
    """Blocks of weights, of which only the first was observed with all else.

    setting: whose samples and model are run. columns: that are looked at, by layer. taps: what a run gives, where the
    model is small: with fewer, ONNX Runtime would compute some of it in another way. sample_bytes: of the taps of one
    sample, which decide about batches.
    """

    setting: AnalysisInput
    blocks: Sequence[tuple[str, ...]]
    columns: Mapping[str, ColumnSample]
    taps: Sequence[str]
    sample_bytes: int

    def observe(self, names: Iterable[str], observed: CalibrationStats, deadline: Deadline) -> bool:
        """Put the moments of a block where its means are; whether there was time for all samples and columns."""
        wanted = set(names)
        if wanted == set(self.blocks[0]):
            return True
        layers = [layer for layer in self.setting.fitted_layers if layer.weight in wanted]
        read = tuple(dict.fromkeys(layer.input for layer in layers))
        taps = read if is_in_files(self.setting.model) else self.taps
        splits = (self.setting.tuning, observed.moments), (self.setting.held_back, observed.held_moments)
        pace = Pace(deadline, sum(len(samples) for samples, _ in splits))
        runner, inputs = Runner(self.setting.model, taps), input_specs(self.setting.model)
        for samples, moments in splits:
            result = dict[str, Moments]()
            for start, feeds, values in batches(runner, samples, taps, self.sample_bytes, inputs):
                part, rows = pace.part(), rows_of(samples, feeds)
                if start and part < LEAST_PART:
                    pace.did(len(samples) - start, 0.0)
                    break
                accumulate(result, layers, thinned(self.columns, part), values, start)
                pace.did(rows, max(part, LEAST_PART))
            moments.update(result)
        return not pace.is_short


@dataclass
class _Batch:
    """Samples on their way. start: number of the first one; rows: how many; values: that nodes still read, by name."""

    start: int
    rows: int
    values: dict[str, Waiting]


@dataclass
class MomentStream:
    """Blocks of weights in the order in which they are observed; each is observed once.

    setting: whose samples and model are run. columns: that are looked at, by layer. sample_bytes: of what the layers of
    one block read of a sample, at most; they decide about batches.
    """

    setting: AnalysisInput
    blocks: Sequence[tuple[str, ...]]
    columns: Mapping[str, ColumnSample]
    sample_bytes: int
    _place: int = 0
    _slicer: Slicer = field(init=False)
    _batches: tuple[list[_Batch], ...] = field(init=False)
    _owed: list[Layer] = field(init=False)

    def __post_init__(self) -> None:
        self._slicer, self._owed = Slicer(self.setting.model), list(self.setting.fitted_layers)
        size = int(np.clip(BATCH_BYTES // max(self.sample_bytes, 1), 1, LARGEST_BATCH))
        self._batches = tuple(
            list(_started(samples, size)) for samples in (self.setting.tuning, self.setting.held_back)
        )

    def observe(self, names: Iterable[str], observed: CalibrationStats, deadline: Deadline) -> bool:
        """Add the moments of a block; whether there was time for all samples and columns.

        Raises CalibrationError for a sample that the model does not run on, ModelError as `accumulate`.
        """
        wanted = set(names)
        layers = [layer for layer in self._owed if layer.weight in wanted]
        self._owed = [layer for layer in self._owed if layer.weight not in wanted]
        stretch = self._stretch(layers)
        pace = Pace(deadline, sum(batch.rows for batches in self._batches for batch in batches))
        splits = (self.setting.tuning, observed.moments), (self.setting.held_back, observed.held_moments)
        for split, (samples, moments) in zip(self._batches, splits, strict=True):
            with self._explaining(samples):
                moments.update(self._observed(stretch, split, layers, pace))
        return not pace.is_short

    def _observed(
        self, stretch: "_Stretch", batches: list[_Batch], layers: Sequence[Layer], pace: Pace
    ) -> dict[str, Moments]:
        result = dict[str, Moments]()
        for done, (batch, values) in enumerate(stretch.run(batches)):
            part = pace.part()
            if done and part < LEAST_PART:
                pace.did(sum(left.rows for left in batches[done:]), 0.0)
                del batches[done:]  # for the blocks to come, too: their values are not there
                break
            accumulate(result, layers, thinned(self.columns, part), values, batch.start)
            pace.did(batch.rows, max(part, LEAST_PART))
        return result

    @contextmanager
    def _explaining(self, samples: Samples) -> Iterator[None]:
        """Tells a failure by the sample that the whole model refuses."""
        try:
            yield
        except PtqcError:
            raise
        except Exception as error:  # ONNX Runtime raises a dozen types of its own
            model = self.setting.model
            with explaining(Runner(model), samples, input_specs(model)):
                raise error from None

    def _stretch(self, layers: Sequence[Layer]) -> "_Stretch":
        """The nodes up to the last one whose output a layer reads."""
        read = {layer.input for layer in layers}
        nodes, first = self._slicer.nodes, self._place
        makers = [place for place, node in enumerate(nodes) if not read.isdisjoint(node.output)]
        self._place = end = max([first, *(place + 1 for place in makers)])
        behind = {*self._slicer.read_by(range(end, len(nodes))), *self._slicer.outputs}
        behind |= {layer.input for layer in self._owed}
        return _Stretch(Piece(self._slicer, range(first, end), sorted(read | behind), {}), read, behind)


@dataclass(frozen=True)
class _Stretch:
    """Consecutive nodes. read: what is looked at; behind: what is read behind them."""

    piece: Piece
    read: set[str]
    behind: set[str]

    def run(self, batches: Sequence[_Batch]) -> Iterator[tuple[_Batch, Feeds]]:
        """Each batch with what is looked at; what is not read behind the nodes is let go of."""
        together = processors()
        for some in (batches[first : first + together] for first in range(0, len(batches), together)):
            yield from zip(some, in_order(self._run, some), strict=True)

    def _run(self, batch: _Batch) -> Feeds:
        result = {name: batch.values[name].real for name in {*self.piece.reads, *self.read} & batch.values.keys()}
        outputs = self.piece.run(result)
        still_read = {name: waiting for name, waiting in batch.values.items() if name in self.behind}
        batch.values = still_read | {name: Waiting.of(array) for name, array in outputs.items() if name in self.behind}
        return {name: outputs[name] if name in outputs else result[name] for name in self.read}


def _started(samples: Samples, size: int) -> Iterator[_Batch]:
    start = 0
    for feeds in samples.batches(size):
        batch = _Batch(start, rows_of(samples, feeds), {name: Waiting.of(array) for name, array in feeds.items()})
        yield batch
        start += batch.rows
