"""The bytes of a file while its numbers are settled: what entropy codes take more than planned is saved further on.

A plan is weighed with the numbers of the table. Other numbers in the same formats take other bytes where codes are
stored by their frequency, and where a scale or a bias has a unit that no other one has. So every layer is counted as
it is settled, and one of the last with entropy codes gets slightly larger scales where the limit would be missed.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from ptqc.codegen.onnxruntime import size
from ptqc.ir.layers import Layer
from ptqc.ir.plan import Plan
from ptqc.ir.quantized_weight import QuantizedWeight
from ptqc.options import CompileOptions
from ptqc.passes.allocate.problem import bias_of, name_length, weighed
from ptqc.passes.quantize.phases import Analysis

# Bytes that are to be left at the end: arrays that were equal with the table's numbers, and are stored once then, may
# differ.
MARGIN = 64
# Of the bytes of weights with entropy codes, what larger scales are sure to save: they save ten times as much where a
# layer takes them, and some do not, as they would lose more than with the table's numbers.
SAVED = 2e-4


@dataclass
class FileAccount:
    """What a file may still have.

    left: bytes. planned: of each layer. later: of weights by rate behind each layer. units: that are stored.
    """

    analysis: Analysis
    plan: Plan
    options: CompileOptions
    left: int
    planned: dict[str, size.WeightBytes] = field(default_factory=dict)
    later: dict[str, int] = field(default_factory=dict)
    units: set[str] = field(default_factory=set)

    @classmethod
    def open(cls, analysis: Analysis, options: CompileOptions, plan: Plan, limit: int | None) -> "FileAccount | None":
        """The account of a plan whose file may have `limit` bytes; None where that is any number."""
        if limit is None:
            return None
        account = cls(analysis, plan, options, limit - weighed(analysis, options, plan))
        later = 0
        for layer in reversed(plan.layers):
            form = plan.formats[layer.weight]
            account.planned[layer.name] = planned = account.stored(layer, analysis.solutions[layer.weight, form])
            account.later[layer.name] = later
            account.units |= planned.common.keys()
            later += planned.own if form.by_rate else 0
        return account

    def copy(self) -> "FileAccount":
        """One of another file of the same plan, before anything was taken."""
        return replace(self, units=set(self.units))

    def stored(self, layer: Layer, solution: QuantizedWeight, bias: np.ndarray | None = None) -> size.WeightBytes:
        """Bytes of a layer. bias: None for the model's."""
        model, options = self.analysis.model, self.options
        is_integer = layer.name in self.plan.integer and solution.form.has_codes
        use = size.Use(is_integer, bias_of(model, layer, solution, self.plan, bias) if is_integer else None)
        return size.stored(solution, [use], name_length(model, self.plan), inline=options.inline)

    def added(self, layer: Layer, solution: QuantizedWeight, bias: np.ndarray) -> int:
        """Bytes that these numbers take beyond those that were planned."""
        return self._beyond(layer, self.stored(layer, solution, bias))

    def _beyond(self, layer: Layer, actual: size.WeightBytes) -> int:
        units = actual.common.keys() - self.units
        return actual.own - self.planned[layer.name].own + sum(actual.common[unit] for unit in units)

    def is_short(self, layer: Layer, solution: QuantizedWeight, bias: np.ndarray) -> bool:
        """Whether these numbers leave fewer bytes than the layers behind this one can save."""
        missing = MARGIN - (self.left - self.added(layer, solution, bias))
        return missing > 0 and missing > SAVED * self.later[layer.name]

    def take(self, layer: Layer, solution: QuantizedWeight, bias: np.ndarray) -> None:
        """Count the bytes of a layer's final numbers."""
        actual = self.stored(layer, solution, bias)
        self.left -= self._beyond(layer, actual)
        self.units |= actual.common.keys()
