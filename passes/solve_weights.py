"""Fill the table of candidates: every weight in every format, with its error on held-back columns."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from ptqc import codebooks, grids
from ptqc.deadline import Pace
from ptqc.formats import FLOAT16, FLOAT32, Family, Format, codebook, integer, pairs
from ptqc.layers import Layer, Weight
from ptqc.nodes import initial
from ptqc.notes import out_of_time
from ptqc.parallel import in_order
from ptqc.passes import gptq, moments
from ptqc.passes.base import Effect, Result
from ptqc.passes.phases import Observed, Solved
from ptqc.solutions import Candidates, Solution

# Constants of at most this many distinct values are stored exactly, as indices into a table of them.
LARGEST_PALETTE = 16
# Of more levels within ±63 too many would lie where an even grid has them.
CODEBOOK_BITS = range(2, 5)
PAIR_BITS = range(3, 9)
ROUNDS = 1  # of coordinate descent: the plan is solved with more
# With as many columns for each input and as many samples, rounding each weight for itself was never better.
ENOUGH_COLUMNS, ENOUGH_SAMPLES = 4, 32
# What rounding each weight for itself in few formats costs, relative to solving.
HURRIED_COST = 0.1
# Elements of the weights that are put on the shelf together: some 40 MB in all formats.
TOGETHER = 2**21


class Shelf(Protocol):
    """Where candidates are put as soon as they are there, and found by a later compile."""

    def find(self, weights: Sequence[Weight]) -> Candidates | None:
        """What was put there for these weights."""

    def put(self, weights: Sequence[Weight], candidates: Candidates, cut_short: bool = False) -> Candidates:
        """Keep the candidates; what is returned takes their place.

        cut_short: by the time limit; a later compile does not find them.
        """


class _NoShelf:
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


def formats_of(widths: tuple[int, ...]) -> list[Format]:
    """The formats that weights are solved in: uniform grids of these widths, and codebooks."""
    return [integer(bits) for bits in widths] + _codebooks(widths)


def _codebooks(widths: tuple[int, ...]) -> list[Format]:
    """Single codes and pairs of at least the narrowest and at most the widest bits."""
    narrow, wide = min(widths), max(widths)
    single = [codebook(bits) for bits in widths if bits in CODEBOOK_BITS]
    return single + [pairs(bits) for bits in PAIR_BITS if 2 * narrow - 1 <= bits <= 2 * wide]


NO_SHELF: Shelf = _NoShelf()


@dataclass(frozen=True)
class SolveWeights:
    """Solve each weight in every format it may take, against the activations that were observed.

    bits: the widths tried, on uniform grids and, up to 4 bits, as codebooks. shelf: where candidates are kept.
    """

    bits: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8)
    shelf: Shelf = NO_SHELF
    name: ClassVar[str] = "solve-weights"
    effect: ClassVar[Effect] = Effect.DECIDE

    def apply(self, given: Observed) -> Result[Solved]:
        """Solutions and errors of all weights; second moments are let go of, their means stay."""
        groups = list(_groups(given.weights))
        kept = [self.shelf.find(group) for group in groups]
        missing = [weight for group, found in zip(groups, kept, strict=True) if found is None for weight in group]
        if missing and len(missing) < len(given.weights):
            before = len(given.weights) - len(missing)
            given.progress.line(f"{before} of {len(given.weights)} weights were solved by an earlier compile")
        hurried, candidates = set[str](), list[Candidates]()
        with given.progress.stage("solve weights", len(missing)) as stage:
            solved = self._solve(given, missing, hurried)
            for group, found in zip(groups, kept, strict=True):
                if found is None:
                    own = {}
                    for weight in group:
                        own[weight.name] = next(solved)
                        stage.advance(weight.name)
                    cut_short = given.is_thinned or not hurried.isdisjoint(own)
                    found = self.shelf.put(group, own, cut_short)
                given.release(found)
                candidates.append(found)
        solution = Solved.with_candidates(given, candidates)
        if not hurried:
            return Result(solution, True)
        short = out_of_time(f"{len(missing) - len(hurried)} of {len(missing)} weights in all formats")
        return Result(solution, True, (short,))

    def _solve(
        self, given: Observed, weights: Sequence[Weight], hurried: set[str]
    ) -> Iterator[list[tuple[Solution, float]]]:
        """Candidates of each weight. hurried: gets the names of those that there is no time to solve."""
        forms = formats_of(self.bits)
        pace = Pace(given.deadline, sum(products(weight, forms) for weight in weights))

        def solve(weight: Weight) -> list[tuple[Solution, float]]:
            is_hurried = bool(weight.fitted_to) and pace.part() < 1
            if is_hurried:
                hurried.add(weight.name)
            taken = [form for form in forms if not (is_hurried and form.is_codebook)]
            found = list(_candidates(weight, initial(given.model, weight.name), taken, given, is_hurried))
            pace.did(products(weight, forms), HURRIED_COST if is_hurried else 1.0)
            return found

        return in_order(solve, weights, lambda weight: _bytes(weight, forms))


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


def _bytes(weight: Weight, forms: Sequence[Format]) -> int:
    """Bytes that solving a weight takes: its factor in float64, and its numbers in every format, several times."""
    if not weight.fitted_to:
        return 0
    layer = weight.fitted_to[0]
    gram = layer.groups * layer.width**2 if layer.width <= moments.WIDEST_GRAM else 0
    return 32 * gram + 24 * layer.channels * layer.width * len(possible(layer, forms))


def products(weight: Weight, forms: Sequence[Format]) -> float:
    """Roughly the multiplications that solving a weight takes: factoring its moments, and rounding in every format."""
    if not weight.fitted_to:
        return float(weight.size)
    layer = weight.fitted_to[0]
    rows = layer.channels // layer.groups * len(forms)
    return float(layer.groups * layer.width**2 * (layer.width + rows))


def possible(layer: Layer, forms: Sequence[Format]) -> list[Format]:
    """The formats that a layer's weight can take: pairs are neighbours in memory."""
    if layer.channel_axis or layer.width % 2:
        return [form for form in forms if form.group == 1]
    return list(forms)


def _candidates(
    weight: Weight, values: np.ndarray, forms: list[Format], observed: Observed, hurried: bool
) -> Iterable[tuple[Solution, float]]:
    yield Solution(FLOAT32, values, np.empty(0, np.float32), weight.channel_axis), 0.0
    if np.isfinite(values).all():
        if np.abs(values).max(initial=0.0) < np.finfo(np.float16).max:
            yield Solution(FLOAT16, values.astype(np.float16), np.empty(0, np.float32), weight.channel_axis), 0.0
        yield from (
            _layer(weight, values, forms, observed, hurried) if weight.fitted_to else _table(weight, values, forms)
        )
    if (exact := palette(weight, values)) is not None:
        yield exact, 0.0


def _layer(
    weight: Weight, values: np.ndarray, forms: list[Format], observed: Observed, hurried: bool
) -> Iterable[tuple[Solution, float]]:
    """hurried: each weight is rounded for itself."""
    layer = weight.fitted_to[0]
    matrix = layer.matrix(values)
    second, held, count = _moments(weight, layer, observed)
    if hurried and second.ndim == 3:
        second = np.diagonal(second, axis1=1, axis2=2)
    power = moments.total_error(matrix, held) or 1.0
    forms = possible(layer, forms)
    grids = gptq.grids_for(matrix, second, forms, keeps_sign=layer.keeps_sign)
    targets = [gptq.Target.of(matrix, grids[form], form, ROUNDS) for form in forms]
    tried = [second]
    if second.ndim == 3 and (count < ENOUGH_COLUMNS * layer.width or len(observed.tuning) < ENOUGH_SAMPLES):
        # Against its own diagonal alone GPTQ is nearest rounding; it wins where the rest of H misleads.
        tried.append(np.diagonal(second, axis1=1, axis2=2))
    answers = zip(*(gptq.round_all(targets, one) for one in tried), strict=True)
    for form, several in zip(forms, answers, strict=True):
        errors = {rounded: moments.total_error(matrix - rounded.weight, held) / power for rounded in several}
        rounded, error = min(errors.items(), key=lambda item: item[1])
        codes = np.ascontiguousarray(layer.tensor(rounded.codes))
        yield Solution(form, codes, rounded.scale.reshape(-1), weight.channel_axis), error


def _moments(weight: Weight, layer: Layer, observed: Observed) -> tuple[np.ndarray, np.ndarray, int]:
    """Second moments to fit to and to judge by, and of how many columns.

    Centred where the bias is corrected, which those of layers in subgraphs are not. Where no sample takes a branch, or
    what it computes cannot be observed, all inputs count the same.
    """
    found = observed.moments.get(weight.name)
    if found is None:
        same = np.ones((layer.groups, layer.width), np.float32)
        return same, same, 0
    held, centred = observed.held_moments.get(weight.name, found), bool(weight.layers)
    return moments.shrunk(found.second(centred), found.count), held.second(centred), found.count


def _table(weight: Weight, values: np.ndarray, forms: list[Format]) -> Iterable[tuple[Solution, float]]:
    power = float((values.astype(np.float64) ** 2).sum()) or 1.0
    for form in forms:
        if form.group > 1:
            continue
        if form.is_codebook:
            codes, scale = codebooks.round_nearest(values, weight.channel_axis, form)
        else:
            codes, scale = grids.round_nearest(values, weight.channel_axis, form)
        solution = Solution(form, codes, scale, weight.channel_axis)
        yield solution, float(((values.astype(np.float64) - solution.weight) ** 2).sum()) / power


def palette(weight: Weight, values: np.ndarray) -> Solution | None:
    """The exact form of a constant with few distinct values, in 1, 2 or 4 bits."""
    distinct = np.unique(values[:: max(1, len(values) // 64)])
    if len(distinct) > LARGEST_PALETTE:
        return None
    distinct, indices = np.unique(values, return_inverse=True)
    if len(distinct) > LARGEST_PALETTE:
        return None
    bits = next(b for b in (1, 2, 4) if len(distinct) <= 2**b)
    codes = indices.reshape(values.shape).astype(np.uint8)
    return Solution(Format(Family.PALETTE, bits), codes, distinct.astype(np.float32), weight.channel_axis)
