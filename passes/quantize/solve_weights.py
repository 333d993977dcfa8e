"""Fill the table of candidates: every weight in every format, with its error on held-back columns."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from ptqc.errors import ModelError
from ptqc.formats import Format, Scaled, TwoOfFour
from ptqc.ir.external import is_in_files
from ptqc.ir.layers import MATRIX, Layer, Weight, is_large_table
from ptqc.ir.nodes import initial
from ptqc.ir.quantized_weight import Candidates, QuantizedWeight
from ptqc.notes import Level, Note, out_of_time
from ptqc.options import Sparsity
from ptqc.passes.base import Effect, Result
from ptqc.passes.quantize import gptq, moments
from ptqc.passes.quantize.gptq import ColumnOrder
from ptqc.passes.quantize.phases import CalibrationStats, WeightCandidates
from ptqc.utils.deadline import Pace
from ptqc.utils.executors.base import Executor, Packed, UnitOfWork
from ptqc.utils.executors.threads import Threads
from ptqc.utils.parallel import in_order, no_need
from ptqc.utils.progress import IN_SHARES, in_shares

# One weight and what its candidates follow from: a problem that can be solved anywhere.

ROUNDS = 1  # of coordinate descent; reconstruction does more for the plan that is chosen

FormatSolutions = list[tuple[QuantizedWeight, float]]


@dataclass(frozen=True, eq=False)
class WeightProblem(UnitOfWork[FormatSolutions]):
    """A weight that is to be rounded in several formats.

    values: of the weight's shape. forms: that suit it. axis: of its channels. powers: whether scales are to be powers
    of two. layer: that it is fitted to; None where each number is rounded for itself. second, held: second moments
    (groups, d, d), or their diagonals (groups, d), to fit to and to judge by. alone: whether rounding each number for
    itself competes with GPTQ. together: formats that are solved at a time. numbers: of the weight, that are worked on
    together; None: all.
    """

    values: np.ndarray
    forms: Sequence[Scaled]
    axis: int
    powers: bool = False
    layer: Layer | None = None
    second: np.ndarray | None = None
    held: np.ndarray | None = None
    alone: bool = False
    together: int = 1
    numbers: int | None = None

    def solve(self) -> FormatSolutions:
        """Each format's solution with its error, relative to the power of the layer's output or of the weight."""
        return list(self._rounded() if self.layer is None else self._fitted(self.layer))

    def _fitted(self, layer: Layer) -> Iterable[tuple[QuantizedWeight, float]]:
        def kind(form: Scaled) -> tuple[bool, bool]:
            return form.along_inputs, gptq.is_alike(form, layer)

        for (_, alike), forms in groupby(sorted(self.forms, key=kind), kind):
            some = list(forms)
            yield from self._fitted_in(ColumnOrder.of(some[0], layer), layer, some, alike)

    def _fitted_in(
        self, order: ColumnOrder, layer: Layer, forms: Sequence[Scaled], alike: bool
    ) -> Iterable[tuple[QuantizedWeight, float]]:
        assert self.second is not None
        assert self.held is not None
        second, held, matrix = (
            order.moments(self.second),
            order.moments(self.held),
            order.rows(layer.matrix(self.values)),
        )
        power = moments.total_error(matrix, held) or 1.0
        tried: list[np.ndarray | gptq.Factored] = [second]
        if second.ndim == 3:
            neighbours = max(form.together for form in forms)
            tried = [gptq.Factored.of(second, together=neighbours, alike=alike)]
        if self.alone:
            # Against its own diagonal alone GPTQ is nearest rounding; it wins where the rest of H misleads.
            tried.append(np.diagonal(second, axis1=1, axis2=2))
        starts = range(0, len(forms), self.together)
        for some in (forms[first : first + self.together] for first in starts):
            grids = gptq.grids_for(matrix, second, some, keeps_sign=layer.keeps_sign, powers=self.powers)
            targets = [gptq.RoundingTarget.of(matrix, grids[form], form, ROUNDS) for form in some]
            answers = zip(*(gptq.round_best(targets, one, self.numbers) for one in tried), strict=True)
            for form, several in zip(some, answers, strict=True):
                errors = {rounded: moments.total_error(matrix - rounded.weight, held) / power for rounded in several}
                rounded, error = min(errors.items(), key=lambda item: item[1])
                codes = np.ascontiguousarray(layer.tensor(order.restored(rounded.codes)))
                yield QuantizedWeight(form, codes, rounded.scale.reshape(-1), self.axis), error

    def _rounded(self) -> Iterable[tuple[QuantizedWeight, float]]:
        power = _power(self.values) or 1.0
        for form in self.forms:
            solution = QuantizedWeight(form, *form.rounded(self.values, self.axis, powers=self.powers), self.axis)
            yield solution, _power(self.values, solution.weight) / power

    def pack(self) -> Packed:
        """Options as JSON, and the arrays that there are."""
        document = {
            "forms": [str(form) for form in self.forms],
            "axis": self.axis,
            "powers": self.powers,
            "layer": None if self.layer is None else asdict(self.layer),
            "alone": self.alone,
            "together": self.together,
            "numbers": self.numbers,
        }
        arrays = {"values": self.values, "second": self.second, "held": self.held}
        return document, {name: array for name, array in arrays.items() if array is not None}

    @classmethod
    def unpack(cls, document: Any, arrays: Mapping[str, np.ndarray]) -> Self:
        """Inverse of `pack`."""
        layer: dict[str, Any] | None = document["layer"]
        lists = {name: tuple(x) for name, x in (layer or {}).items() if isinstance(x, list)}
        result: dict[str, Any] = {
            **document,
            **arrays,
            "forms": [Format.parse(text) for text in document["forms"]],
            "layer": None if layer is None else Layer(**{**layer, **lists}),
        }
        return cls(**result)

    @classmethod
    def pack_result(cls, result: FormatSolutions) -> Packed:
        """A list of formats, axes and errors, and the arrays of each by its number."""
        arrays = dict[str, np.ndarray]()
        for number, (solution, _) in enumerate(result):
            arrays |= {f"codes {number}": solution.codes, f"scale {number}": solution.scale}
        return [[str(solution.form), solution.axis, error] for solution, error in result], arrays

    @classmethod
    def unpack_result(cls, document: Any, arrays: Mapping[str, np.ndarray]) -> FormatSolutions:
        """Inverse of `pack_result`."""
        return [
            (QuantizedWeight(Format.parse(form), arrays[f"codes {number}"], arrays[f"scale {number}"], axis), error)
            for number, (form, axis, error) in enumerate(document)
        ]


def _power(values: np.ndarray, others: np.ndarray | float = 0.0) -> float:
    """The sum of the squares of what two arrays differ by."""
    difference = values.astype(np.float64)
    difference -= others
    difference *= difference
    return float(difference.sum())


# From so many columns per input and so many samples on, rounding each weight for itself was never better than GPTQ, and
# is not tried.
ENOUGH_COLUMNS, ENOUGH_SAMPLES = 4, 32
# What a weight costs that is only rounded, in the formats that need no fitting, relative to solving it in all.
HURRIED_COST = 0.1
# Seconds that a weight takes in any case and for each number in each format, and products per second; they decide what
# progress says, and how a time limit is kept.
EACH, NUMBER, SPEED = 0.15, 3e-7, 5e10
# Bytes of a weight's numbers in the formats that it is solved in at a time, where the model does not fit into memory.
FORMAT_BYTES = 2**28
# Weights are stored in groups of about so many elements: some 40 MB in all formats.
TOGETHER = 2**21
# Bytes for each number of a table while it is rounded.
TABLE_BYTES = 16


class CandidateCache(Protocol):
    """Keeps the candidates of weights from one compile to the next."""

    def find(self, weights: Sequence[Weight]) -> Candidates | None:
        """What an earlier compile put there for these weights."""

    def put(self, weights: Sequence[Weight], candidates: Candidates, cut_short: bool = False) -> Candidates:
        """Keep the candidates; the caller goes on with those that are returned.

        cut_short: whether a time limit left some out; a later compile then does not find them.
        """


class _NoCache:
    """Keeps nothing."""

    def find(self, weights: Sequence[Weight]) -> None:  # noqa: ARG002
        return None

    def put(
        self,
        weights: Sequence[Weight],  # noqa: ARG002
        candidates: Candidates,
        cut_short: bool = False,  # noqa: ARG002
    ) -> Candidates:
        return candidates


def formats_of(
    widths: Sequence[int], weights: Iterable[Weight], only: Collection[str] = (), more: Collection[str] = ()
) -> list[Scaled]:
    """The formats that weights of a model are solved in.

    only: their families; empty: all that suit the model, and more.
    """
    if only:
        tried = [family for family in Format.families if family.family in only]
    else:
        suited = {family for family in _suited(weights) if not family.lacks()}
        tried = [family for family in Format.families if family in suited or family.family in more]
    return [form for family in tried for form in family.offered(widths)]


def _suited(weights: Iterable[Weight]) -> list[type[Format]]:
    numbers = sum(weight.size for weight in weights)
    return [family for family in Format.families if family.suits_model(numbers)]


def pruned_formats(weight: Weight, values: np.ndarray, sparsity: Sparsity, widths: tuple[int, ...]) -> list[Scaled]:
    """The formats of a weight of which some numbers are to become zero; none where none are.

    That is so of layers with groups, whose channels are narrow, and where a table shares the numbers.
    """
    is_left = sparsity == "given" or not weight.fitted_to or weight.table is not None or not np.isfinite(values).all()
    if is_left or any(layer.groups > 1 for layer in weight.fitted_to):
        return []
    return possible(weight, TwoOfFour.offered(widths))


NO_CACHE: CandidateCache = _NoCache()


@dataclass(frozen=True)
class SolveWeights:
    """Solve each weight in every format it may take, against the activations that were observed.

    bits: the widths tried. cache: where candidates are kept. sparsity: see `ptqc.options.CompileOptions`. only,
    more: see `formats_of`. executor: where candidates are computed.
    """

    bits: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8)
    cache: CandidateCache = NO_CACHE
    sparsity: Sparsity = "given"
    only: frozenset[str] = frozenset()
    more: frozenset[str] = frozenset()
    executor: Executor = field(default_factory=Threads)
    name: ClassVar[str] = "solve-weights"
    effect: ClassVar[Effect] = Effect.DECIDE

    def apply(self, stats: CalibrationStats) -> Result[WeightCandidates]:
        """Solutions and errors of all weights; second moments are let go of, their means stay."""
        groups = list(_groups(stats.weights))
        cached = [self.cache.find(group) for group in groups]
        missing = [weight for group, result in zip(groups, cached, strict=True) if result is None for weight in group]
        if missing and len(missing) < len(stats.weights):
            before = len(stats.weights) - len(missing)
            stats.progress.line(f"{before} of {len(stats.weights)} weights were solved by an earlier compile")
        hurried, thinned, candidates = set[str](), set[str](), list[Candidates]()
        forms = formats_of(self.bits, stats.weights, self.only, self.more)
        steps = iter(in_shares([_cost(weight, forms) for weight in missing] or [1.0]))
        with stats.progress.stage("solve weights", IN_SHARES if missing else 0) as stage:
            solved = self._solve(stats, missing, forms, hurried, thinned)
            for group, result in zip(groups, cached, strict=True):
                if result is None:
                    own = {}
                    for weight in group:
                        own[weight.name] = next(solved)
                        stage.advance(weight.name, next(steps))
                    cut_short = stats.is_thinned or not (hurried | thinned).isdisjoint(own)
                    result = self.cache.put(group, own, cut_short)
                    self.executor.settle(own)
                stats.release(result)
                candidates.append(result)
        solution = WeightCandidates.with_candidates(stats, candidates)
        lacks = () if self.only else [family.lacks() for family in _suited(stats.weights)]
        notes = [
            Note(self.name, "", f"weights lose more than necessary: {lack}", Level.WARNING) for lack in lacks if lack
        ]
        if hurried:
            notes.append(out_of_time(f"{len(missing) - len(hurried)} of {len(missing)} weights in all formats"))
        return Result(solution, True, tuple(notes))

    def _solve(
        self,
        stats: CalibrationStats,
        weights: Sequence[Weight],
        forms: Sequence[Scaled],
        hurried: set[str],
        thinned: set[str],
    ) -> Iterator[list[tuple[QuantizedWeight, float]]]:
        """Candidates of each weight. hurried: gets the names of those that there is no time to solve.

        thinned: of those that there was no time to observe on all samples and columns.
        """
        in_files = is_in_files(stats.model)
        if in_files:  # outputs are solved some at a time
            forms = [form for form in forms if not (form.by_column or form.by_row)]
        pace = Pace(stats.deadline, sum(_cost(weight, forms) for weight in weights), 1.0)  # costs are in seconds

        def solve(weight: Weight) -> list[tuple[QuantizedWeight, float]]:
            takes_long = bool(weight.fitted_to) or any(form.by_row for form in possible(weight, forms))
            is_hurried = takes_long and pace.part() < 1
            if is_hurried:
                hurried.add(weight.name)
            taken = [form for form in forms if not (is_hurried and form.is_learned)]
            values = initial(stats.model, weight.name)
            pruned = pruned_formats(weight, values, self.sparsity, self.bits)
            result = [] if pruned else [(solution, 0.0) for solution in direct(weight, values)]

            def problem() -> WeightProblem:
                return _problem(weight, values, pruned or suited(weight, values, taken), stats, is_hurried)

            if np.isfinite(values).all():
                rounded = self.executor.solve(weight.name, problem)
                result += rounded
            pace.did(_cost(weight, forms), HURRIED_COST if is_hurried else 1.0)
            return result

        need = partial(solving_bytes, forms=forms, in_files=in_files)
        blocks = [tuple(weight.name for weight in weights)] if stats.later is None else stats.later.blocks
        for names in blocks:
            own = [weight for weight in weights if weight.name in names]
            if own and stats.later is not None and not stats.later.observe(names, stats, stats.deadline):
                thinned.update(names)
            yield from in_order(solve, own, need if self.executor.is_here else no_need, self.executor.workers)


def _cost(weight: Weight, forms: Sequence[Scaled]) -> float:
    """How long it takes beside others, in seconds of one processor."""
    return EACH + NUMBER * weight.size * len(forms) + products(weight, forms) / SPEED


def _groups(weights: Iterable[Weight]) -> Iterator[list[Weight]]:
    """Neighbours of together about TOGETHER elements."""
    group: list[Weight] = []
    for weight in weights:
        group.append(weight)
        if sum(one.size for one in group) >= TOGETHER:
            yield group
            group = []
    if group:
        yield group


def solving_bytes(weight: Weight, forms: Sequence[Scaled], *, in_files: bool = False) -> int:
    """Bytes that solving a weight takes: its factor in float64, and its numbers in every format, several times.

    in_files: whether it is one of a model beyond memory.
    """
    if not weight.fitted_to:
        return TABLE_BYTES * weight.size
    layer = weight.fitted_to[0]
    at_once = _at_once(weight, possible(weight, forms), in_files=in_files)
    return moments.factor_bytes(layer.groups, layer.width) + _format_bytes(layer, in_files=in_files) * at_once


def _at_once(weight: Weight, forms: Sequence[Scaled], *, in_files: bool) -> int:
    """In how many formats a weight is solved at a time: in all, as each adds rows to one problem, or in a few."""
    if not in_files:
        return max(1, len(forms))
    return max(1, min(len(forms), FORMAT_BYTES // _format_bytes(weight.fitted_to[0], in_files=in_files)))


def _format_bytes(layer: Layer, *, in_files: bool) -> int:
    """Bytes of a weight in a format while it is solved: 24 for each number; beyond memory 12 for what waits."""
    size = layer.channels * layer.width
    return 12 * size + 12 * min(size, gptq.NUMBERS) if in_files else 24 * size


def products(weight: Weight, forms: Sequence[Format]) -> float:
    """Roughly the multiplications that solving a weight takes: factoring its moments, and rounding in every format."""
    if not weight.fitted_to:
        return float(weight.size)
    layer = weight.fitted_to[0]
    rows = layer.channels // layer.groups * len(forms)
    return float(layer.groups * layer.width**2 * (layer.width + rows))


def possible(weight: Weight, forms: Sequence[Scaled]) -> list[Scaled]:
    """The formats that a weight can take; what no layer multiplies with is rounded number by number, or row by row."""
    return _for_layers(weight, forms) if weight.fitted_to else _for_tables(weight, forms)


def _for_tables(weight: Weight, forms: Sequence[Scaled]) -> list[Scaled]:
    *outer, width = weight.shape or (1,)
    has_rows = weight.channel_axis < len(outer)  # else each number has a scale of its own
    is_large = is_large_table(weight.shape)
    return [
        form
        for form in forms
        if not (form.within_channels or form.in_pairs)
        and (not form.by_row or (has_rows and form.fits(width, math.prod(outer))))
        and (not is_large or _suits_rows(form))
    ]


def _suits_rows(form: Scaled) -> bool:
    """Whether rows of a table can be unpacked alone; or it keeps the zeros of a table, which nothing else does."""
    return form.is_regular or form.by_row or form.keeps_zeros


def _for_layers(weight: Weight, forms: Sequence[Scaled]) -> list[Scaled]:
    layer = weight.fitted_to[0]
    inputs = layer.width // layer.taps
    is_sequence = is_in_sequence(weight)
    fitting = [form for form in forms if form.fits(inputs if form.along_inputs else layer.width, layer.channels)]
    fitting = [form for form in fitting if not form.by_row and (is_sequence or not form.by_column)]
    return [form for form in fitting if weight.table is None or _suits_rows(form)]


def is_in_sequence(weight: Weight) -> bool:
    """Whether the outputs of a column can be one sequence: stored in order, and of any sign."""
    layer = weight.fitted_to[0]
    is_first = layer.channel_axis == 0 or len(weight.shape) == MATRIX
    return weight.table is None and is_first and not layer.keeps_sign


def suited(weight: Weight, values: np.ndarray, forms: Sequence[Scaled]) -> list[Scaled]:
    """The formats that a weight can take and that are worth trying."""
    rows, result = in_rows(weight, values), possible(weight, forms)
    families = dict.fromkeys(type(form) for form in result)
    suits = {family: family.suits(_order(weight, family).rows(rows)) for family in families}
    worth = [form for form in result if suits[type(form)]]
    superseded = {
        other
        for family in families
        if suits[family]
        for other in family.superseded(rows, [form for form in worth if type(form) is family])
    }
    return [form for form in worth if form not in superseded]


def _order(weight: Weight, family: type[Scaled]) -> ColumnOrder:
    return ColumnOrder.of(family, weight.fitted_to[0]) if weight.fitted_to else ColumnOrder()


def in_rows(weight: Weight, values: np.ndarray) -> np.ndarray:
    """A weight's numbers with a row for each channel."""
    if weight.fitted_to:
        return weight.fitted_to[0].matrix(values)
    return np.moveaxis(values, weight.channel_axis, 0).reshape(values.shape[weight.channel_axis], -1)


def direct(weight: Weight, values: np.ndarray) -> Iterator[QuantizedWeight]:
    """What a weight can be stored as without being fitted to anything."""
    for family in Format.families:
        for form, codes, scale in family.direct(values):
            yield QuantizedWeight(form, codes, scale, weight.channel_axis)


def _problem(
    weight: Weight, values: np.ndarray, forms: list[Scaled], observed: CalibrationStats, hurried: bool
) -> WeightProblem:
    """What is asked of a solver. hurried: each number is rounded for itself."""
    if not weight.fitted_to:
        return WeightProblem(values, forms, weight.channel_axis, observed.powers)
    layer = weight.fitted_to[0]
    second, held, count = _moments(weight, layer, observed)
    if hurried and second.ndim == 3:
        second = np.diagonal(second, axis1=1, axis2=2)
    few = count < ENOUGH_COLUMNS * layer.width or len(observed.tuning) < ENOUGH_SAMPLES
    in_files = is_in_files(observed.model)
    return WeightProblem(
        values,
        forms,
        weight.channel_axis,
        observed.powers,
        layer,
        second,
        held,
        alone=few and second.ndim == 3,
        together=_at_once(weight, forms, in_files=in_files),
        numbers=gptq.NUMBERS if in_files else None,
    )


def _moments(weight: Weight, layer: Layer, observed: CalibrationStats) -> tuple[np.ndarray, np.ndarray, int]:
    """Second moments to fit to and to judge by, and of how many columns.

    Centred where a bias makes up for the mean error of every layer that uses the weight; none does in subgraphs. Where
    no sample takes a branch, the layer's input is always empty, or what it computes cannot be observed, all inputs
    count the same. Where one split shows nothing, the other one does both. Raises ModelError where nothing that the
    layer reads is finite.
    """
    splits = [several.get(weight.name) for several in (observed.moments, observed.held_moments)]
    seen = [each for each in splits if each is not None and each.count]
    if not seen and any(each is not None and each.left_out for each in splits):
        raise ModelError(
            f"layer input {layer.input!r} is NaN or infinite in every sample, and nothing can be fitted to that: check "
            "the model, the samples and their preprocessing"
        )
    if not seen:
        same = np.ones((layer.groups, layer.width), np.float32)
        return same, same, 0
    result, held = seen[0], seen[-1]
    centred = bool(weight.layers) and all(user.is_corrected for user in weight.layers)
    second, judged = moments.shrunk(result.second(centred), result.count), held.second(centred)
    if weight.table is not None:  # to what reads its rows all numbers count the same
        second, judged = moments.with_even(second), moments.with_even(judged)
    return second, judged, result.count
