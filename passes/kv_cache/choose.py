"""Which form each cache has: what is asked for, or what loses least within a budget of bytes.

The integer program adds up what forms lose one by one. Its plan is measured beside those of one form for all caches,
and the best is taken.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import onnx_ir as ir

from ptqc.calibration.samples import Samples
from ptqc.calibration.sources import spread
from ptqc.errors import Infeasible, UsageError
from ptqc.execution.onnxruntime import Feeds, Runner, tensors_of
from ptqc.execution.tensors import outputs_in_files
from ptqc.ir.layers import Cache, find_caches
from ptqc.kv_cache.form import CacheForm, packed_arrays
from ptqc.kv_cache.known import FLOAT, NAMES
from ptqc.losses import recognize
from ptqc.losses.total import OutputLoss
from ptqc.options import KvCache
from ptqc.passes.allocate.constraints.caches import CacheBudget
from ptqc.passes.kv_cache.wrap import check_packable, form_named, refusal
from ptqc.solver.integer_program import Goal, JointChoice, NoSelection, Option, solve

# What samples show of a decoder's caches: their bytes in each form, and what a form loses.
#
# The float model with its past rounded as it is stored gives what the packed model gives, so no form needs a model of
# its own. Half of the samples with something cached say how channels are sorted, the other half what forms lose.

JUDGED = 32


@dataclass(frozen=True)
class CacheStatistics:
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
        result = (self._rounded(feeds, forms) for feeds in self.judged)
        return self._measure.mean(self._references, result)

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
        outputs = tensors_of(self.runner.run(feeds))
        return {name: outputs[str(cache.present.name)] for name, cache in self.caches.items()}

    @cached_property
    def runner(self) -> Runner:
        """Of the float model."""
        return Runner(self.model)

    @cached_property
    def _references(self) -> list[Feeds]:
        return outputs_in_files(tensors_of(self.runner.run(feeds)) for feeds in self.judged)

    @cached_property
    def _measure(self) -> OutputLoss:
        """Of all outputs that are no caches."""
        kinds = recognize(self.model, self.judged[0], self._references)
        presents = {str(cache.present.name) for cache in self.caches.values()}
        answers = {name: kind for name, kind in kinds.items() if name not in presents}
        return OutputLoss.of(answers, self._references)

    def _rounded(self, feeds: Feeds, forms: Mapping[str, CacheForm]) -> Feeds:
        past = {name: form.unpack(*form.pack(feeds[name])) for name, form in forms.items()}
        return tensors_of(self.runner.run({**feeds, **past}))


LOSS, BYTES = "loss", "bytes"
Forms = dict[str, CacheForm | None]  # by the name of the input; None: float
Places = dict[str, int]  # of each cache's form among those offered


@dataclass(frozen=True)
class ChosenForms:
    """losses: of each cache alone, where they decided."""

    forms: Forms
    losses: Mapping[str, float]


def asked_names(model: ir.Model, requested: KvCache, budget: CacheBudget | None) -> dict[str, str]:
    """The form that each cache has to have, by the name of the input; a budget chooses for those that are missing.

    Raises UsageError.
    """
    names = [cache.name for cache in find_caches(model)]
    if not names and (requested != FLOAT or budget is not None):
        raise UsageError(
            "kv_cache: the model has no cache of keys and values: inputs of 4 axes such as past_key_values.0.key, with "
            "outputs such as present.0.key"
        )
    if not isinstance(requested, str):
        if unknown := requested.keys() - set(names):
            raise UsageError(f"kv_cache: {sorted(unknown)[0]!r} is not a cache of the model; it has {', '.join(names)}")
        return dict(requested) if budget is not None else {**dict.fromkeys(names, FLOAT), **requested}
    if budget is None:
        return dict.fromkeys(names, requested)
    if requested != FLOAT:
        raise UsageError(
            f"kv_cache is {requested!r} for all caches, and the budget {budget} would choose for each: give one of "
            "the two, or kv_cache by input"
        )
    return {}


def chosen(seen: CacheStatistics, names: Mapping[str, str], budget: CacheBudget | None) -> ChosenForms:
    """The forms of all caches. names: see `asked_names`. Raises UsageError, or Infeasible for too small a budget."""
    offered = {name: list(_offered(seen, name, names.get(name))) for name in seen.caches}
    if budget is None:
        return ChosenForms({name: forms[0] for name, forms in offered.items()}, {})
    if not seen.judged:
        raise UsageError(
            f"the budget {budget} is divided by the loss of each cache, and no calibration sample has anything cached: "
            "record feeds of later steps (see examples/generate.py), or give kv_cache"
        )
    options = [
        Option(name, place, {LOSS: _loss(seen, name, form), BYTES: float(seen.bytes(name, form))})
        for name, forms in offered.items()
        for place, form in enumerate(forms)
    ]
    program, limit = JointChoice(tuple(options)), budget.limit(sum(seen.bytes(name, None) for name in seen.caches))
    selections = [_selection(program, seen, budget, limit), *_uniform(program, offered, limit)]
    plans = [{name: offered[name][selection[name]] for name in offered} for selection in selections]
    losses = [seen.loss({name: form for name, form in plan.items() if form is not None}) for plan in plans]
    best = losses.index(min(losses))
    taken = [option for option in options if selections[best][option.choice] == option.state]
    return ChosenForms(plans[best], {option.choice: option.costs[LOSS] for option in taken})


def _offered(seen: CacheStatistics, cache: str, requested: str | None) -> Iterator[CacheForm | None]:
    """The forms that a cache can have; what is asked for alone, where something is. Raises UsageError."""
    for name in (FLOAT, *NAMES) if requested is None else (requested,):
        form = seen.form(cache, name)
        if form is not None and requested is not None:
            check_packable(seen.model, seen.caches[cache], form)
        if form is None or refusal(seen.model, seen.caches[cache], form) is None:
            yield form


def _loss(seen: CacheStatistics, cache: str, form: CacheForm | None) -> float:
    return 0.0 if form is None else seen.loss({cache: form})


def _uniform(program: JointChoice, offered: Mapping[str, Sequence[CacheForm | None]], limit: int) -> Iterator[Places]:
    """Every form for all caches that are free, where a limit allows it: losses of many do not add up exactly."""
    for wanted in NAMES:
        places = {
            name: next((i for i, form in enumerate(forms) if form is not None and form.name == wanted), 0)
            for name, forms in offered.items()
        }
        if program.costs(places)[BYTES] <= limit:
            yield places


def _selection(program: JointChoice, seen: CacheStatistics, budget: CacheBudget, limit: int) -> Places:
    """The forms that lose least by the sum of what each loses. limit: bytes that the budget allows."""
    try:
        return dict(solve(program, Goal(LOSS, {BYTES: limit})).selection)  # type: ignore[arg-type]
    except NoSelection:
        smallest = sum(min(int(option.costs[BYTES]) for option in group) for group in program.choices.values())
        raise Infeasible(
            f"the budget {budget} cannot be met: it allows the caches {limit:,} bytes at {seen.places} tokens, and the "
            f"narrowest formats take {smallest:,}",
            smallest,
        ) from None
