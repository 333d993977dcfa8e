"""Observe the inputs of layers in branches of If and bodies of Loop and Scan: the second moments of their weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.calibration.samples import Samples
from ptqc.errors import ModelError
from ptqc.execution.onnxruntime import Feeds, Runner, reason_of
from ptqc.ir.layers import Layer, draws, find_inner_layers
from ptqc.notes import Level, Note, out_of_time
from ptqc.passes.base import Effect, Result
from ptqc.passes.quantize.inner_inputs import with_inner_inputs
from ptqc.passes.quantize.moments import ColumnSample, Moments, positions_per_sample
from ptqc.passes.quantize.observing import accumulate
from ptqc.passes.quantize.phases import Observed, Setting


@dataclass(frozen=True)
class CalibrateInner:
    """Observe what layers inside branches and loops read; where that cannot be done, they are rounded without it."""

    name: ClassVar[str] = "calibrate-inner"
    effect: ClassVar[Effect] = Effect.DECIDE

    def apply(self, given: Observed) -> Result[Observed]:
        """What was observed, with the moments of inner layers that some sample reaches."""
        layers = [layer for weight in given.weights for layer in weight.inner]
        every = list(find_inner_layers(given.model).values())
        if not every:
            return Result(given, False)
        found: tuple[dict[str, Moments], dict[str, Moments]] = ({}, {})
        try:
            observer = _Observer.of(given.model, layers, every, given)
            is_whole = observer.observe(given.tuning, found[0]) and observer.observe(given.held_back, found[1])
        except ModelError as error:
            message = f"layers in branches and loops are solved without data, as what they read cannot be seen: {error}"
            return Result(given, False, (Note(self.name, every[0].weight, message, Level.SKIPPED),))
        observed = replace(
            given,
            moments=given.moments | found[0],
            held_moments=given.held_moments | found[1],
            is_thinned=given.is_thinned or not is_whole,
        )
        if not is_whole:
            notes: tuple[Note, ...] = (out_of_time("few samples of what layers in branches and loops read"),)
        else:
            notes = tuple(self._unseen(layer) for layer in every if layer.input not in observer.reached)
        return Result(observed, True, notes)

    def _unseen(self, layer: Layer) -> Note:
        message = (
            f"no calibration sample enters the branch or loop in which this {layer.op_type} stands: its weight "
            f"{layer.weight} is not fitted to what it multiplies there, and no figure says what that costs; give "
            "samples that enter it"
        )
        return Note(self.name, layer.name.partition(" in graph ")[0], message, Level.WARNING)


@dataclass(frozen=True)
class _Observer:
    """Runs a model that hands on what inner layers read.

    taps: by the name of a layer's input the value that is it. layers: those whose moments are observed. every: all
    layers in branches and loops. reached: names of inputs that some sample has computed.
    """

    runner: Runner
    taps: Mapping[str, str]
    layers: Sequence[Layer]
    every: Sequence[Layer]
    setting: Setting
    reached: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, model: ir.Model, layers: Sequence[Layer], every: Sequence[Layer], setting: Setting) -> "_Observer":
        """Raises ModelError where ONNX Runtime does not take the model."""
        showing, taps = with_inner_inputs(model)
        return cls(Runner(showing, list(taps.values())), taps, layers, every, setting)

    def observe(self, samples: Samples, found: dict[str, Moments]) -> bool:
        """Add what samples show to the moments found; whether there was time for all of them.

        Raises ModelError where ONNX Runtime cannot show it, or it is not finite or too large to be squared.
        """
        numbers = draws(self.layers)
        for start, feeds in enumerate(samples.batches(1)):
            if start and not self.setting.deadline.leaves(0):
                return False
            values = self._read(feeds)
            self.reached.update(values)
            reached = [layer for layer in self.layers if layer.input in values]
            columns = {layer.name: self._columns(layer, numbers, values[layer.input]) for layer in reached}
            accumulate(found, self.layers, columns, values, start)
        return True

    def _read(self, feeds: Feeds) -> Feeds:
        """What the layers that a sample reaches read, by the names of their inputs. Raises ModelError."""
        try:
            values = self.runner.run(feeds, list(self.taps.values()))
        except Exception as error:  # ONNX Runtime raises a dozen types of its own
            raise ModelError(reason_of(error)) from error
        read = {layer.input: layer for layer in self.every if layer.input in self.taps}
        shown = {name: _as_batch(layer, values[self.taps[name]]) for name, layer in read.items()}
        return {name: array for name, array in shown.items() if array.size}

    def _columns(self, layer: Layer, numbers: Mapping[str, int], array: np.ndarray) -> ColumnSample:
        """As many columns of a sample as other layers have, whether it has one iteration or many. numbers: of draws."""
        each = positions_per_sample(layer, len(self.setting.tuning))
        seed = self.setting.seed * 100_003 + numbers[layer.name]
        return ColumnSample(layer, -(-each // len(array)), seed)


def _as_batch(layer: Layer, array: np.ndarray) -> np.ndarray:
    """Iterations and samples of a convolution's input on one axis; a product's of one axis as a row."""
    if layer.is_convolution and array.size:
        return array.reshape(-1, *array.shape[-1 - len(layer.kernel) :])
    return np.atleast_2d(array)
