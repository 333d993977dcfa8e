"""Second moments of a model's weights, some of them at a time.

Those of all weights together may take more memory than the model. So weights that follow each other form blocks, and
for each block the calibration set is run once more when its turn has come to be solved. Models beyond memory have
another way, where there is nothing else to observe: see `moment_stream.py`.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ptqc.calibration.inputs import input_specs
from ptqc.execution.onnxruntime import Runner
from ptqc.ir.external import is_in_files
from ptqc.ir.layers import Weight
from ptqc.passes.quantize.moments import ColumnSample, Moments, bytes_of
from ptqc.passes.quantize.observing import accumulate, batches, rows_of, thinned
from ptqc.passes.quantize.phases import Observed, Setting
from ptqc.utils.deadline import Deadline, Pace

# Bytes of the second moments of a block, on both splits of the calibration set; a block has at least one weight.
BLOCK_BYTES = 2**30
# The same where the model does not fit into memory.
SMALL_BLOCK_BYTES = 2**28
# Share of a batch's columns that are at least looked at; where there is no time for these, samples are left out.
LEAST_PART = 0.25


def blocks_of(given: Setting) -> list[tuple[str, ...]]:
    """Names of weights that follow each other, whose moments are in memory at the same time."""
    room = SMALL_BLOCK_BYTES if is_in_files(given.model) else BLOCK_BYTES
    return grouped(((weight.name, weight.readings, 2 * _bytes(weight)) for weight in given.weights), room)


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

    setting: Setting
    blocks: Sequence[tuple[str, ...]]
    columns: Mapping[str, ColumnSample]
    taps: Sequence[str]
    sample_bytes: int

    def observe(self, names: Iterable[str], observed: Observed, deadline: Deadline) -> bool:
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
            found = dict[str, Moments]()
            for start, feeds, values in batches(runner, samples, taps, self.sample_bytes, inputs):
                part, rows = pace.part(), rows_of(samples, feeds)
                if start and part < LEAST_PART:
                    pace.did(len(samples) - start, 0.0)
                    break
                accumulate(found, layers, thinned(self.columns, part), values, start)
                pace.did(rows, max(part, LEAST_PART))
            moments.update(found)
        return not pace.is_short
