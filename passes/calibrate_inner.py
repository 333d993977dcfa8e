"""Observe the inputs of layers in branches of If and bodies of Loop and Scan: the second moments of their weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.calibration.samples import Samples
from ptqc.errors import ModelError
from ptqc.execute.onnxruntime import Feeds, Runner, reason_of
from ptqc.layers import Layer
from ptqc.notes import Level, Note, out_of_time
from ptqc.passes.base import Effect
from ptqc.passes.calibrate import accumulate
from ptqc.passes.context import Context
from ptqc.passes.inner_inputs import with_inner_inputs
from ptqc.passes.moments import Columns, Moments, positions_per_sample


@dataclass(frozen=True)
class CalibrateInner:
    """Observe what layers inside branches and loops read; where that cannot be done, they are rounded without it."""

    name: ClassVar[str] = "calibrate-inner"
    effect: ClassVar[Effect] = Effect.DECIDE

    def apply(self, model: ir.Model, context: Context) -> list[Note]:
        """Add moments and held_moments of the weights of inner layers to the context, for those that are reached."""
        layers = [layer for weight in context.weights for layer in weight.inner]
        if not layers:
            return []
        found: tuple[dict[str, Moments], dict[str, Moments]] = ({}, {})
        try:
            observer = _Observer.of(model, layers, context)
            is_whole = observer.observe(context.tuning, found[0]) and observer.observe(context.held_back, found[1])
        except ModelError as error:
            message = f"layers in branches and loops are solved without data, as what they read cannot be seen: {error}"
            return [Note(self.name, layers[0].weight, message, Level.SKIPPED)]
        context.moments |= found[0]
        context.held_moments |= found[1]
        if is_whole:
            return []
        context.is_thinned = True
        return [out_of_time("few samples of what layers in branches and loops read")]


@dataclass(frozen=True)
class _Observer:
    """Runs a model that hands on what inner layers read. taps: by the name of a layer's input the value that is it."""

    runner: Runner
    taps: Mapping[str, str]
    layers: Sequence[Layer]
    context: Context

    @classmethod
    def of(cls, model: ir.Model, layers: Sequence[Layer], context: Context) -> "_Observer":
        """Raises ModelError where ONNX Runtime does not take the model."""
        showing, taps = with_inner_inputs(model)
        return cls(Runner(showing, list(taps.values())), taps, layers, context)

    def observe(self, samples: Samples, found: dict[str, Moments]) -> bool:
        """Add what samples show to the moments found; whether there was time for all of them.

        Raises ModelError where ONNX Runtime cannot show it, or it is not finite or too large to be squared.
        """
        for start, feeds in enumerate(samples.batches(1)):
            if start and not self.context.deadline.leaves(0):
                return False
            values = self._read(feeds)
            layers = [layer for layer in self.layers if layer.input in values]
            columns = {layer.name: self._columns(layer, values[layer.input]) for layer in layers}
            accumulate(found, layers, columns, values, start)
        return True

    def _read(self, feeds: Feeds) -> Feeds:
        """What the layers that a sample reaches read, by the names of their inputs. Raises ModelError."""
        try:
            values = self.runner.run(feeds, list(self.taps.values()))
        except Exception as error:  # ONNX Runtime raises a dozen types of its own
            raise ModelError(reason_of(error)) from error
        read = {layer.input: layer for layer in self.layers if layer.input in self.taps}
        shown = {name: _as_batch(layer, values[self.taps[name]]) for name, layer in read.items()}
        return {name: array for name, array in shown.items() if array.size}

    def _columns(self, layer: Layer, array: np.ndarray) -> Columns:
        """As many columns of a sample as of other layers, whether it has one iteration or many."""
        each = positions_per_sample(layer, len(self.context.tuning))
        return Columns(layer, -(-each // len(array)), self.context.seed * 100_003 + self.layers.index(layer))


def _as_batch(layer: Layer, array: np.ndarray) -> np.ndarray:
    """Iterations and samples of a convolution's input on one axis; a product's of one axis as a row."""
    if layer.op_type == "Conv" and array.size:
        return array.reshape(-1, *array.shape[-1 - len(layer.kernel) :])
    return np.atleast_2d(array)
