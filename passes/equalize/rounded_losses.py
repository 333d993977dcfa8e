"""What 8-bit activations, and coarse weights, lose on held-back samples: to compare two spellings of one function."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx_ir as ir

from ptqc.calibration.ranges import RangeObserver
from ptqc.calibration.samples import Samples
from ptqc.execution.onnxruntime import Runner
from ptqc.execution.walk import Slicer, Values
from ptqc.formats import QuantParams
from ptqc.ir.layers import Layer
from ptqc.ir.nodes import initial
from ptqc.ir.sites import source_params
from ptqc.losses import OutputLoss, recognize
from ptqc.passes.quantize.calibrate import observed_params
from ptqc.passes.quantize.phases import Setting
from ptqc.passes.reconstruct.quantized_walk import run_quantized

# Bits of the coarse weights: few enough that what a rewrite does to weights shows.
COARSE = 4
# A difference of means that is less than so many of its standard errors is none.
SURE = 2.0


@dataclass(frozen=True, eq=False)
class SampleLosses:
    """Losses of each held-back sample (samples,): of activations alone, and of weights alone."""

    activations: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two spellings of one function on the same samples. before, after: their losses. unit: of the losses."""

    before: SampleLosses
    after: SampleLosses
    unit: str

    @property
    def is_better(self) -> bool:
        """Whether activations lose less, by more than chance, and weights no more than by chance."""
        gain, its_error = _mean_and_error(self.before.activations - self.after.activations)
        harm, error = _mean_and_error(self.after.weights - self.before.weights)
        return gain > SURE * its_error and harm <= error

    @property
    def is_better_for_weights(self) -> bool:
        """Whether weights lose less, by more than chance, and activations no more than by chance."""
        gain, its_error = _mean_and_error(self.before.weights - self.after.weights)
        harm, error = _mean_and_error(self.after.activations - self.before.activations)
        return gain > SURE * its_error and harm <= error

    def __str__(self) -> str:
        gain, error = _mean_and_error(self.before.activations - self.after.activations)
        before, after = self.before.activations.mean(), self.after.activations.mean()
        weights = f"{COARSE}-bit weights {self.before.weights.mean():.3g} and {self.after.weights.mean():.3g}"
        told = f"8-bit activations lose {before:.3g} {self.unit} without and {after:.3g} with it"
        return f"{told} (difference {gain:.2g} ± {error:.1g}), {weights}"


def _mean_and_error(differences: np.ndarray) -> tuple[float, float]:
    return float(differences.mean()), float(differences.std(ddof=1) / np.sqrt(len(differences)))


@dataclass(frozen=True, eq=False)
class RoundedLosses:
    """Compares models of one function. tuning: ranges are seen on these; held_back: losses are measured on these."""

    model: ir.Model
    tuning: Samples
    held_back: Samples
    loss: str | Mapping[str, str]

    def of(self, model: ir.Model) -> SampleLosses:
        """The losses of a model with all activations in 8 bits, and of one with coarse weights."""
        setting = Setting.of(model, self.tuning, self.held_back)
        constants = {layer.weight: coarse(layer, initial(model, layer.weight)) for layer in setting.layers}
        params = source_params(setting.sites, ranges(setting))
        return SampleLosses(self.rounded(model, params, {}), self.rounded(model, {}, constants))

    @cached_property
    def unit(self) -> str:
        """Of the losses."""
        return self._judge.unit

    @cached_property
    def _reference(self) -> list[Values]:
        return run_quantized(Slicer(self.model), self.held_back, {})

    @cached_property
    def _judge(self) -> OutputLoss:
        kinds = recognize(self.model, self.held_back[0], self._reference, self.loss)
        return OutputLoss.of(kinds, self._reference)

    def rounded(
        self, model: ir.Model, params: Mapping[str, QuantParams], constants: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Losses of each sample with these tensors rounded, and other values for these constants."""
        found = run_quantized(Slicer(model), self.held_back, params, constants)
        pairs = zip(self._reference, found, strict=True)
        return np.array([self._judge(expected, outputs) for expected, outputs in pairs])


def ranges(setting: Setting) -> dict[str, QuantParams]:
    """Parameters of 8 bits by site, by the method that calibration tries first."""
    observers = {site.name: RangeObserver() for site in setting.sites}
    taps = list(dict.fromkeys(source for site in setting.sites for source in site.sources))
    runner = Runner(setting.model, taps)
    for feeds in setting.tuning:
        values = runner.run(feeds, taps)
        for site in setting.sites:
            for source in site.sources:
                observers[site.name].update(values[source])
    return {name: observed_params(observer) for name, observer in observers.items()}


def coarse(layer: Layer, weight: np.ndarray, bits: int = COARSE) -> np.ndarray:
    """A weight rounded to a grid of its own for each output, from its largest magnitude."""
    matrix = layer.matrix(weight)
    most = 2 ** (bits - 1) - 1
    step = np.maximum(np.abs(matrix).max(-1, keepdims=True) / most, np.finfo(np.float32).tiny)
    return layer.tensor((np.rint(matrix / step) * step).astype(weight.dtype))
