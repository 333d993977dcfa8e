"""What samples show of a decoder's caches: their bytes in each form, and what a form loses.

The float model with its past rounded as it is stored gives what the packed model gives, so no form needs a model of
its own. Half of the samples with something cached say how channels are sorted, the other half what forms lose.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import onnx_ir as ir

from ptqc.calibration.samples import Samples
from ptqc.calibration.sources import spread
from ptqc.execution.bounded import outputs_in_files
from ptqc.execution.onnxruntime import Feeds, Runner, tensors_of
from ptqc.ir.caches import Cache, find_caches
from ptqc.kv_cache.form import CacheForm
from ptqc.kv_cache.known import FLOAT
from ptqc.kv_cache.values import packed_arrays
from ptqc.losses import recognize
from ptqc.losses.total import OutputLoss
from ptqc.passes.kv_cache.known import form_named

JUDGED = 32


@dataclass(frozen=True)
class SeenCaches:
    """A model with caches, and samples."""

    model: ir.Model
    samples: Samples

    @cached_property
    def caches(self) -> dict[str, Cache]:
        """By the name of the input."""
        return {cache.name: cache for cache in find_caches(self.model)}

    @cached_property
    def judged(self) -> Samples:
        """Samples that say what forms lose; none where nothing is cached in any."""
        every = self._filled[1::2] or self._filled
        return self.samples.select([every[i] for i in spread(len(every), JUDGED)])

    @property
    def places(self) -> int:
        """Of the longest text, with the tokens of the run that reads it."""
        return max(int(array.shape[2]) for array in self._longest.values())

    @property
    def unit(self) -> str:
        """Of losses."""
        return self._measure.unit if self.judged else ""

    def form(self, cache: str, name: str) -> CacheForm | None:
        """A form by its name, with channels sorted as in the samples that do not judge; None: float."""
        return None if name == FLOAT else form_named(name, [feeds[cache] for feeds in self._others])

    def bytes(self, cache: str, form: CacheForm | None) -> int:
        """Of one cache at the longest text, measured on it; None: float."""
        array = self._longest[cache]
        return array.nbytes if form is None else sum(x.nbytes for x in packed_arrays(cache, array, form).values())

    def inputs(self, cache: str, form: CacheForm | None) -> tuple[str, ...]:
        """Names of the inputs that hold a cache."""
        channels = self._longest[cache].shape[-1]
        return (cache,) if form is None else tuple(cache + part.suffix for part in form.parts(channels))

    def loss(self, forms: Mapping[str, CacheForm]) -> float:
        """Mean of the judged samples in one step, where these caches are packed."""
        found = (self._rounded(feeds, forms) for feeds in self.judged)
        return self._measure.mean(self._references, found)

    @cached_property
    def _filled(self) -> list[int]:
        """Samples with something cached."""
        records = enumerate(self.samples.records)
        return [i for i, record in records if any(t.name in self.caches and prod(t.shape) for t in record.tensors)]

    @cached_property
    def _others(self) -> Samples:
        return self.samples.select(self._filled[::2])

    @cached_property
    def _longest(self) -> Feeds:
        """What the largest sample leaves in each cache, by the name of the input."""
        (feeds,) = self.samples.largest
        outputs = tensors_of(self._runner.run(feeds))
        return {name: outputs[str(cache.present.name)] for name, cache in self.caches.items()}

    @cached_property
    def _runner(self) -> Runner:
        return Runner(self.model)

    @cached_property
    def _references(self) -> list[Feeds]:
        return outputs_in_files(tensors_of(self._runner.run(feeds)) for feeds in self.judged)

    @cached_property
    def _measure(self) -> OutputLoss:
        """Of all outputs that are no caches."""
        kinds = recognize(self.model, self.judged[0], self._references)
        presents = {str(cache.present.name) for cache in self.caches.values()}
        answers = {name: kind for name, kind in kinds.items() if name not in presents}
        return OutputLoss.of(answers, self._references)

    def _rounded(self, feeds: Feeds, forms: Mapping[str, CacheForm]) -> Feeds:
        past = {name: form.unpack(*form.pack(feeds[name])) for name, form in forms.items()}
        return tensors_of(self._runner.run({**feeds, **past}))
