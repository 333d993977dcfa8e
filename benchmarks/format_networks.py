"""Weights and activations of a task's network, as number formats see them."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from number_formats import NumberFormat, Rows
from tasks import Task

from ptqc.execution.onnxruntime import Runner
from ptqc.frontend import read_model
from ptqc.ir.layers import Weight
from ptqc.ir.nodes import initial
from ptqc.passes.equalize.equalize_channels import RoundedLosses
from ptqc.passes.quantize.calibrate import Calibrate
from ptqc.passes.quantize.gptq import importance_of
from ptqc.passes.quantize.phases import AnalysisInput, CalibrationStats
from ptqc.passes.quantize.prepare import gather, prepare
from ptqc.passes.quantize.solve_weights import direct, in_rows
from ptqc.utils.progress import SILENT

# Weights of a constant that are looked at: whole channels, evenly spread.
LOOKED_AT = 2**13
# Held-back samples that losses are measured on, and of those, what activations are taken from.
JUDGED, SEEN = 16, 2
# Positions (pixels or tokens) of a tensor of activations that are looked at.
POSITIONS = 512


@dataclass(frozen=True, eq=False)
class FormatNetwork:
    """A network in normal form, with the moments of what its layers multiply."""

    observed: CalibrationStats

    @property
    def weights(self) -> list[Weight]:
        """Constants that formats differ on: those of few values are stored exactly in any case."""
        return [weight for weight in self.observed.weights if not self._is_exact(weight)]

    def _is_exact(self, weight: Weight) -> bool:
        values = initial(self.observed.model, weight.name)
        families = {solution.form.family for solution in direct(weight, values)}
        return "palette" in families or not np.isfinite(values).all() or not np.any(values)

    def rows(self, weight: Weight, most: int | None = LOOKED_AT) -> Rows:
        """The weight's channels, with the second moments of what they are multiplied with. most: of its numbers."""
        values, importance = in_rows(weight, initial(self.observed.model, weight.name)), None
        taps = weight.fitted_to[0].taps if weight.fitted_to else 1
        if weight.fitted_to and (moments := self.observed.moments.get(weight.name)) is not None:
            per_input = importance_of(moments.second(weight.fitted_to[0].is_corrected))
            importance = np.broadcast_to(per_input, values.shape).reshape(-1, values.shape[-1])
        return replace(_some(values.reshape(-1, values.shape[-1]), importance, most), taps=taps)

    def rounded(self, weight: Weight, form: NumberFormat) -> np.ndarray:
        """The whole weight, rounded number by number."""
        values = form.store(self.rows(weight, None)).values
        if weight.fitted_to:
            layer = weight.fitted_to[0]
            return layer.tensor(values.reshape(layer.groups, -1, layer.width))
        shape = np.moveaxis(np.empty(weight.shape), weight.channel_axis, 0).shape
        return np.ascontiguousarray(np.moveaxis(values.reshape(shape), 0, weight.channel_axis))

    @cached_property
    def losses(self) -> RoundedLosses:
        """What other weights lose on held-back samples."""
        return RoundedLosses(self.observed.model, self.observed.tuning, self.observed.held_back[:JUDGED], "auto")

    def loss(self, constants: dict[str, np.ndarray]) -> float:
        """With these constants in place of those of the model."""
        return float(self.losses.rounded(self.observed.model, {}, constants).mean())

    def activations(self) -> Iterator[np.ndarray]:
        """What layers read (positions, channels), on a few held-back samples."""
        taps = list(dict.fromkeys(layer.input for layer in self.observed.layers))
        convolved = {layer.input for layer in self.observed.layers if layer.is_convolution}
        runner = Runner(self.observed.model, taps)
        seen: dict[str, list[np.ndarray]] = {}
        for feeds in self.observed.held_back[:SEEN]:
            for name, value in runner.run(feeds, taps).items():
                last = np.moveaxis(value, 1, -1) if name in convolved else value
                seen.setdefault(name, []).append(last.reshape(-1, last.shape[-1]))
        for several in seen.values():
            positions = np.concatenate(several)
            if np.any(positions):
                yield np.asarray(positions[:: -(-len(positions) // POSITIONS)], np.float32)


def _some(values: np.ndarray, importance: np.ndarray | None, most: int | None) -> Rows:
    stride = 1 if most is None else max(1, min(len(values), values.size // most))
    some = None if importance is None else importance[::stride]
    return Rows.of(np.asarray(values[::stride], np.float32), some, len(values))


@contextmanager
def opened(task: Task, samples: int) -> Iterator[FormatNetwork]:
    """The network of a task, calibrated."""
    with tempfile.TemporaryDirectory(prefix="ptqc-bench-") as folder:
        source = read_model(task.path)
        feeds = gather(source, task.calibration(samples), Path(folder), samples, None, SILENT)
        prepared = prepare(source, feeds, SILENT)
        setting = AnalysisInput.of(prepared.model, prepared.tuning, prepared.held_back)
        yield FormatNetwork(Calibrate().apply(setting).output)
