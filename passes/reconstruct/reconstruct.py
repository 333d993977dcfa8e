"""Solve the chosen plan again in run order, each layer on the inputs it will really see.

What a layer minimizes, and how its bias is corrected, is in `bias_correction.py`. Several answers compete (the table's
own and GPTQ's, each with and without the bias), and the one with the lowest error on held-back columns is kept before
the next layer starts.

What the float model chooses (places of a TopK, masks, counts: all that is computed from real numbers and is none) the
quantized walk takes over. Rows behind such a choice then stand for the same in y and in x̂; by a choice of its own, the
walk would compare rows of different things, or another number of them.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice, takewhile
from typing import ClassVar, Protocol

import numpy as np
import onnx_ir as ir

from ptqc.calibration.samples import Samples
from ptqc.errors import NotFinite
from ptqc.execution.finite import Finite
from ptqc.execution.onnxruntime import Feeds
from ptqc.execution.tensors import WALK_MEMORY, Bounded, Held, outputs_in_files
from ptqc.execution.walk import Keep, Slicer, Walk
from ptqc.formats import Format, Scaled
from ptqc.ir.external import is_in_files
from ptqc.ir.integer_arithmetic import bias_reach
from ptqc.ir.layers import Layer, Reading, draws
from ptqc.ir.nodes import constant
from ptqc.ir.operators import Trait, named
from ptqc.ir.plan import Plan
from ptqc.ir.quantized_weight import QuantizedParameters, QuantizedWeight, with_tables
from ptqc.passes.base import Effect, Result
from ptqc.passes.quantize import gptq, moments
from ptqc.passes.quantize.moments import ColumnSample, Joined
from ptqc.passes.quantize.phases import Analysis, AnalyzedPlan
from ptqc.passes.reconstruct.layer_problem import ROUNDS, LayerInputs, LayerProblem
from ptqc.passes.reconstruct.quantized_walk import Holding, compact, fine_values, peak_bytes, uncompressed
from ptqc.utils.deadline import Deadline
from ptqc.utils.memory import give_back
from ptqc.utils.parallel import Room, Shared, in_order, processors
from ptqc.utils.progress import IN_SHARES, Stage, in_shares

# Bytes of activations that all walks may hold together; they decide how many samples take part.
WALK_BYTES = 3 * 2**29
# Multiply-accumulates that a walk may take; they decide the same.
WALK_COMPUTE = 4e11
MOST_SAMPLES = 256
FEWEST_SAMPLES = 4  # where time is short
# Share of the samples that judge the answers; the others are fitted to.
HELD_SHARE = 0.25
# Bytes that a walk holds of one batch: the allocator keeps memory of up to this size for the next batch.
BATCH_BYTES = 2**23
LARGEST_BATCH = 8
# How far each draw moves a layer from W towards W*. The whole way makes up for most of the error of the layers before,
# but noise in x̂ makes W* small, which adds up over many layers. From GENEROUS_BITS on there is little to make up for.
STRENGTHS = (0.5, 1.0, 0.25)
GENEROUS_BITS = 6.0
GENEROUS_STRENGTHS = (0.5, 0.25, 1.0)
# Seconds that a layer takes in any case, and products per second on its columns and on its moments; they decide what
# progress says.
EACH, COLUMNS_SPEED, MOMENTS_SPEED = 0.03, 1e10, 1e10
# How many times as many columns as the table of candidates was solved on; wide layers have no more.
COLUMNS = 4
# Places among the scales that can be stored by which those of a layer are larger whose codes are to take fewer bytes.
COARSER = 1
# Bytes for each number of a weight of a model beyond memory.
NUMBER_BYTES = 16
# What these give follows from the sizes of their input.
SHAPES = named(Trait.MEASURES)
TOP_K = "TopK"
UNIQUE = "Unique"
# How many layers the fastest draw may be ahead of the slowest: their float outputs are held.
LEAD = 1


# Outputs of a node by name, for each batch; and names of outputs by the first output of their node.
Results = dict[str, list[Held]]
Choices = Mapping[str, Sequence[str]]
NO_CHOICES: Choices = {}
# Error on held-back columns, weight and bias.
Answer = tuple[float, QuantizedWeight, np.ndarray]


@dataclass(frozen=True)
class Reconstruct:
    """Gives every layer of a plan its final codes, scales and bias.

    draw: which columns of the data are looked at, and how much a layer makes up for those before it; every draw gives
    another answer.
    """

    draw: int = 0
    name: ClassVar[str] = "reconstruct"
    effect: ClassVar[Effect] = Effect.TUNE

    def apply(self, analyzed: AnalyzedPlan) -> Result[QuantizedParameters]:
        """The tuned numbers of the plan."""
        return Result(reconstruct_all(analyzed, [self.draw])[0], True)


@dataclass(frozen=True)
class ColumnLimits:
    """How much is looked at. columns: for each that the table was made of. samples: at most."""

    columns: int = COLUMNS
    samples: int = MOST_SAMPLES


FULL = ColumnLimits()


class ByteAccount(Protocol):
    """Bytes that a file has left while its numbers are settled layer by layer, in run order."""

    def copy(self) -> "ByteAccount":
        """One of another file of the same plan."""

    def added(self, layer: Layer, solution: QuantizedWeight, bias: np.ndarray) -> int:
        """Bytes that these numbers take beyond those that were planned."""

    def is_short(self, layer: Layer, solution: QuantizedWeight, bias: np.ndarray) -> bool:
        """Whether these numbers leave fewer bytes than the layers behind this one can save."""

    def take(self, layer: Layer, solution: QuantizedWeight, bias: np.ndarray) -> None:
        """Count the bytes of a layer's final numbers."""


@dataclass(frozen=True)
class Earlier:
    """Numbers of a plan by draw, from which another plan takes what would come out the same."""

    plan: Plan
    numbers: Mapping[int, QuantizedParameters]

    def numbers_for(self, plan: Plan, draw: int) -> Mapping[str, tuple[QuantizedWeight, np.ndarray | None]]:
        """Weight and bias of the layers, in run order, before the first one whose format differs."""
        numbers = self.numbers.get(draw)
        if numbers is None or numbers.solved_alone or _strengths(plan) != _strengths(self.plan):
            return {}
        same = takewhile(lambda one: plan.formats[one.weight] == self.plan.formats[one.weight], plan.layers)
        return {layer.name: (numbers.weights[layer.weight], numbers.biases[layer.name]) for layer in same}


def reconstruct_all(
    planned: AnalyzedPlan,
    draws: Sequence[int],
    account: ByteAccount | None = None,
    limits: ColumnLimits = FULL,
    earlier: Earlier | None = None,
) -> list[QuantizedParameters]:
    """The tuned numbers of a plan from each draw.

    account: of the file of each draw, where its bytes are limited; it stays as it is. earlier: numbers of a plan of the
    same analysis; layers before the first one whose format differs keep them. Raises NotFinite where a value is NaN or
    infinite that is not in the float model.
    """
    return reconstruct_each(planned.analysis, [(planned.plan, draw) for draw in draws], limits, account, earlier)


def reconstruct_each(
    analysis: Analysis,
    runs: Sequence[tuple[Plan, int]],
    limits: ColumnLimits = FULL,
    account: ByteAccount | None = None,
    earlier: Earlier | None = None,
) -> list[QuantizedParameters]:
    """The tuned numbers of each plan from its draw, all of one model with the same activations.

    account, earlier: see `reconstruct_all`. Raises NotFinite where a value is NaN or infinite that is not in the float
    model.
    """
    try:
        return _reconstructed(analysis, runs, limits, compact, account, earlier)
    except NotFinite:  # it may be the 16 bits that values are held in on the way
        return _reconstructed(analysis, runs, limits, uncompressed, account, earlier)


def _reconstructed(
    analysis: Analysis,
    runs: Sequence[tuple[Plan, int]],
    limits: ColumnLimits,
    holding: Holding,
    account: ByteAccount | None,
    earlier: Earlier | None,
) -> list[QuantizedParameters]:
    """One float walk serves all."""
    plan, _ = runs[0]
    slicer = Slicer(analysis.model)
    fine, choices = fine_values(slicer), choices_of(analysis.model)
    layers = {layer.name: layer for layer in plan.layers}
    bounded = Bounded(WALK_MEMORY)
    keeps = holding({}, fine), holding(plan.params, fine)
    batches, split, samples = _share_batches(slicer, analysis, len(runs), keeps, limits)
    check = Finite(slicer, batches)
    share = max(1, processors() // len(runs))
    real = Walk(slicer, batches, keep=keeps[0], workers=share, check=check, bounded=bounded)
    states, room = [], Room()
    for each, draw in runs:
        fixed = {
            w.name: analysis.solutions[w.name, each.formats[w.name]] for w in each.weights if w.table or not w.layers
        }
        tables = with_tables(fixed, each.weights)
        constants = {name: solution.weight for name, solution in tables.items()}
        seen = Walk(slicer, batches, constants, keeps[1], share, check, bounded)
        left = None if account is None else account.copy()
        reused = {} if earlier is None else earlier.numbers_for(each, draw)
        state = _State(analysis, each, seen, split, draw, limits.columns, tables, bounded, left, reused, room=room)
        states.append(state)
    steps = dict(zip(layers, in_shares([_cost(analysis, layer) for layer in layers.values()] or [1.0]), strict=False))
    with analysis.progress.stage("reconstruct", IN_SHARES) as stage:
        _solve_all(states, layers, _float_outputs(real, layers, analysis.deadline, choices), stage, steps, choices)
    return [replace(state.tuned, samples=samples) for state in states]


def _cost(analysis: Analysis, layer: Layer) -> float:
    """How long settling a layer takes beside others, in seconds of one processor: its columns, and its moments."""
    columns = min(MOST_SAMPLES, len(analysis.tuning)) * analysis.macs.get(layer.name, 0) / COLUMNS_SPEED
    moments = layer.groups * layer.width**2 * (layer.width + layer.channels // layer.groups * ROUNDS) / MOMENTS_SPEED
    return EACH + columns + moments


def _solve_all(
    states: Sequence["_State"],
    layers: Mapping[str, Layer],
    outputs: Iterator[Results],
    stage: Stage,
    steps: Mapping[str, int],
    choices: Choices,
) -> None:
    """Settle the layers of all states at the same time, while the outputs of the float model are made."""
    shared = Shared[Results](len(states), LEAD)

    def solve(number: int) -> None:
        with shared.reading(number) as own:
            for name in states[number].solve_all(layers, own, choices):
                give_back()
                if number == 0:
                    stage.advance(name, steps[name])

    work = [partial(shared.fill, outputs), *(partial(solve, number) for number in range(len(states)))]
    try:
        for _ in in_order(lambda one: one(), work, workers=len(work)):
            pass
    except BaseException as error:
        shared.stop(error)
        raise shared.cause or error from None


def _strengths(plan: Plan) -> tuple[float, ...]:
    return GENEROUS_STRENGTHS if plan.code_bits >= GENEROUS_BITS else STRENGTHS


def choices_of(model: ir.Model) -> Choices:
    """Where something other than real numbers is computed from real numbers, by more than their shape.

    By the first output of the node, the outputs that are no real numbers, or whose number is chosen, too.
    """
    choices = {}
    for node in model.graph:
        result = [value for value in node.outputs if value.name]
        chosen = [
            str(value.name) for value in result if value.dtype is not None and not value.dtype.is_floating_point()
        ]
        read = [value for value in node.inputs if value is not None and constant(value) is None]
        is_real = any(value.dtype is None or value.dtype.is_floating_point() for value in read)
        if chosen and is_real and node.op_type not in SHAPES:
            choices[str(result[0].name)] = [str(value.name) for value in result] if node.op_type == UNIQUE else chosen
    return choices


def behind_choices(model: ir.Model) -> set[str]:
    """All values that follow from a choice, and not from sizes alone."""
    choices = choices_of(model)
    result = {name for names in choices.values() for name in names}
    for node in model.graph:
        outputs, inputs = ({str(value.name) for value in of if value is not None} for of in (node.outputs, node.inputs))
        if not (choices.keys().isdisjoint(outputs) and result.isdisjoint(inputs)):
            result |= outputs
    return result


def least(answers: Sequence[Answer]) -> Answer:
    """The answer of least error; of equal ones the first."""
    return min(answers, key=lambda answer: answer[0])


def are_paired(layer: Layer, inputs: Sequence[Held], outputs: Sequence[Held]) -> bool:
    """Whether inputs of one walk and outputs of another one have the same positions.

    They may not where a subgraph chooses how many there are.
    """
    columns = ColumnSample(layer, 0, 0)
    axes = slice(2, None) if layer.is_convolution else slice(1, -1)
    return all(
        len(x) == len(y) and columns.out_shape(x.shape) == (y.shape[axes] or (1,))
        for x, y in zip(inputs, outputs, strict=True)
    )


def _float_outputs(
    real: Walk, layers: Mapping[str, Layer], deadline: Deadline, choices: Choices = NO_CHOICES
) -> Iterator[Results]:
    """What each layer gives in the float model and what each choice is, in run order, as long as there is time."""
    for output in _nodes(real):
        if not deadline.leaves(0):
            return
        if output not in layers and output not in choices:
            real.step()
            continue
        results = real.compute()
        result = {name: list(results[name]) for name in choices.get(output, [output])}  # the walk empties its own lists
        real.advance(results)
        yield result


def _nodes(walk: Walk) -> Iterator[str]:
    """The first output of each node, until the walk is at its end."""
    while walk.position < len(walk):
        yield walk.node.output[0]


def _share_batches(
    slicer: Slicer, analysis: Analysis, draws: int, keeps: tuple[Keep, Keep], limits: ColumnLimits
) -> tuple[list[Feeds], int, tuple[int, int]]:
    """Batches of as many samples as WALK_BYTES, WALK_COMPUTE and the deadline allow, and how many of them are fitted.

    Behind them: the number of samples, and what it would be without the deadline. keeps: how the float walk and the
    quantized ones hold values.
    """
    began = time.monotonic()
    sample, layers = list(analysis.tuning.largest), {layer.name for layer in analysis.layers}
    real, seen = (peak_bytes(Walk(slicer, sample, keep=keep), layers) for keep in keeps)
    room = min(WALK_BYTES / max(real + draws * seen, 1), WALK_COMPUTE / max(sum(analysis.macs.values()), 1))
    each = (time.monotonic() - began) / 2 * (1 + 2 * draws) / processors()  # a draw computes its layers twice
    most = int(np.clip(room, 8, limits.samples))
    count = analysis.deadline.affords(each, most, FEWEST_SAMPLES)
    tuning, held_back = _shared_samples(analysis, count)
    size = int(np.clip(BATCH_BYTES // max(real, 1), 1, LARGEST_BATCH))
    fitted, judging = tuning.batched(size), held_back.batched(size)
    counts = len(tuning) + len(held_back), sum(map(len, _shared_samples(analysis, most)))
    return outputs_in_files(chain(fitted, judging)), len(fitted), counts


def _shared_samples(analysis: Analysis, count: int) -> tuple[Samples, Samples]:
    """Of `count` samples those that are fitted and those that judge."""
    held = max(2, int(count * HELD_SHARE))
    return analysis.tuning.some(count - held), analysis.held_back.some(held)


@dataclass
class _State:
    """The quantized walk of one draw, and the answers so far.

    split: batches that are fitted to; the others judge. bounded: where columns are held. account: of the file's bytes,
    where they are limited. reused: numbers of layers from another plan. room: for the layers that all draws solve at
    the same time. shared: what layers see that others are still to see; still: how many of them. shared_weights: those
    that several layers multiply with.
    """

    analysis: Analysis
    plan: Plan
    seen: Walk
    split: int
    draw: int
    columns: int
    weights: dict[str, QuantizedWeight]
    bounded: Bounded
    account: ByteAccount | None = None
    reused: Mapping[str, tuple[QuantizedWeight, np.ndarray | None]] = field(default_factory=dict)
    biases: dict[str, np.ndarray | None] = field(default_factory=dict)
    room: Room = field(default_factory=Room)
    shared: dict[Reading, LayerInputs] = field(default_factory=dict)
    still: Counter[Reading] = field(init=False)
    shared_weights: set[str] = field(init=False)
    unsolved: int = 0
    before: float = 0.0
    after: float = 0.0

    def __post_init__(self) -> None:
        self.still = Counter(layer.reading for layer in self.plan.layers)
        self.shared_weights = {weight.name for weight in self.plan.weights if len(weight.layers) > 1}

    @property
    def tuned(self) -> QuantizedParameters:
        """The answers, and by how much they are closer on held-back columns than the table's."""
        return QuantizedParameters(self.weights, self.biases, self.unsolved, (self.before, self.after), self.draw)

    @property
    def strength(self) -> float:
        """How far from W to W* the layers go."""
        strengths = _strengths(self.plan)
        return strengths[self.draw % len(strengths)]

    def solve_all(
        self, layers: Mapping[str, Layer], outputs: Iterator[Results], choices: Choices = NO_CHOICES
    ) -> Iterator[str]:
        """Settle the layers one by one, given what each gives in the float model; the outputs' names.

        outputs: of the float model, also what it chooses. Where they end early the other layers keep the table's
        numbers.
        """
        for output in _nodes(self.seen):
            if output not in layers and output not in choices:
                self.seen.step()
                continue
            if (wanted := next(outputs, None)) is None:
                break
            if output in choices:
                self.seen.advance(self._chosen(wanted))
                continue
            layer = layers[output]
            result = self.room.run(partial(self._layer_outputs, wanted=wanted[output]), layer, self._need(layer))
            self.seen.advance({output: result})
            yield output
        for layer in layers.values():
            if layer.name not in self.biases:
                self._keep_table(layer)

    def _chosen(self, wanted: Results) -> Results:
        """Outputs of the current node of which some are chosen by the float model."""
        copies = {name: list(several) for name, several in wanted.items()}  # the walk empties its own lists
        chosen, node = {**self.seen.compute(), **copies}, self.seen.node
        if node.op_type == TOP_K:
            values, places = node.output
            axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), -1)
            taken = zip(self.seen.values[node.input[0]], wanted.get(places, ()), strict=True)
            if values and places:
                picked = (np.take_along_axis(np.asarray(x), np.asarray(at), axis) for x, at in taken)
                chosen[values] = [self.seen.keep(values, value) for value in picked]
        return chosen

    def _keep_table(self, layer: Layer) -> None:
        self.unsolved += 1
        self.weights.setdefault(layer.weight, self.analysis.solutions[layer.weight, self.plan.formats[layer.weight]])
        self._take_bias(layer)

    def _take_bias(self, layer: Layer) -> np.ndarray:
        """Give a layer the bias that it has in the model; zeros where it has none."""
        bias = constant(self.analysis.model.graph.initializers[layer.bias]) if layer.bias is not None else None
        self.biases[layer.name] = None if bias is None else bias.reshape(-1)
        return np.zeros(layer.channels, np.float32) if bias is None else bias.reshape(-1)

    def _need(self, layer: Layer) -> int:
        """Bytes that settling a layer takes, of a model beyond memory: its factor, and a few times its numbers."""
        if not is_in_files(self.analysis.model):
            return 0
        return moments.factor_bytes(layer.groups, layer.width) + NUMBER_BYTES * layer.channels * layer.width

    def _layer_outputs(self, layer: Layer, wanted: list[Held]) -> list[Held]:
        if layer.name in self.reused:
            return self._reuse(layer, *self.reused[layer.name])
        if are_paired(layer, self.seen.values[layer.input], wanted):
            return self.solve(layer, self._problem(layer, wanted))
        solution = self.analysis.solutions[layer.weight, self.plan.formats[layer.weight]]
        return self._outputs(layer, self.weights.setdefault(layer.weight, solution), self._take_bias(layer))

    def _reuse(self, layer: Layer, solution: QuantizedWeight, bias: np.ndarray | None) -> list[Held]:
        """Take over a layer's numbers; returns its outputs in the quantized walk."""
        self.still[layer.reading] -= 1
        self.weights[layer.weight], self.biases[layer.name] = solution, bias
        values = np.zeros(layer.channels, np.float32) if bias is None else bias
        if self.account is not None:
            self.account.take(layer, solution, values)
        return self._outputs(layer, solution, values)

    def solve(self, layer: Layer, problem: LayerProblem) -> list[Held]:
        """Settle the layer's weight and bias; returns its outputs in the quantized walk."""
        form = self.plan.formats[layer.weight]
        answers = [answer for solution in self._solutions(layer, form, problem) for answer in problem.judged(solution)]
        error, solution, bias = self._within_bytes(layer, problem, answers)
        self.before, self.after = self.before + answers[0][0], self.after + error
        self.weights[layer.weight] = solution
        self.biases[layer.name] = bias if bias.any() or layer.bias is not None else None
        return self._outputs(layer, solution, bias)

    def _within_bytes(self, layer: Layer, problem: LayerProblem, answers: Sequence[Answer]) -> Answer:
        """The best answer; where the file has too few bytes left for its codes, the one that takes the fewest.

        That may have larger scales, and its error is at most the table's. answers: the table's first.
        """
        best = least(answers)
        if (account := self.account) is None:
            return best
        form, is_free = best[1].form, layer.weight not in self.weights and layer.weight not in self.shared_weights
        if is_free and isinstance(form, Scaled) and form.by_rate and account.is_short(layer, *best[1:]):
            answers = [*answers, *problem.judged(problem.rounded(form, self.strength, COARSER))]
            good = [answer for answer in answers if answer[0] <= answers[0][0]]
            best = min(good, key=lambda answer: account.added(layer, *answer[1:]))
        account.take(layer, *best[1:])
        return best

    def _solutions(self, layer: Layer, form: Format, problem: LayerProblem) -> list[QuantizedWeight]:
        """Candidates in order of preference."""
        if (fixed := self.weights.get(layer.weight)) is not None:  # an earlier layer shares it
            return [fixed]
        table = self.analysis.solutions[layer.weight, form]
        # What is fitted to this layer alone may be far off for others; the table's numbers are fitted to all of them.
        if not isinstance(form, Scaled) or layer.weight in self.shared_weights:
            return [table]
        return [table, problem.rounded(form, self.strength)]

    def _outputs(self, layer: Layer, solution: QuantizedWeight, bias: np.ndarray) -> list[Held]:
        constants = {layer.weight: solution.weight}
        if layer.bias is not None:
            return self.seen.compute({**constants, layer.bias: bias})[layer.name]
        return self.seen.compute(constants, layer.over_output(bias))[layer.name]

    def _problem(self, layer: Layer, outputs: list[Held]) -> LayerProblem:
        inputs, seen = self.seen.values[layer.input], self._inputs_of(layer)
        weight, base = (
            constant(self.analysis.model.graph.initializers[n]) if n else None for n in (layer.weight, layer.bias)
        )
        assert weight is not None
        bias = np.zeros(layer.channels, np.float32) if base is None else base.reshape(-1)
        is_integer, y_params = layer.name in self.plan.integer, self.plan.params.get(layer.output)
        reach = bias_reach(self.plan.formats[layer.weight], bias, y_params) if is_integer else np.inf
        columns = replace(seen.columns, layer=layer)
        parts = (columns.outputs(b, a.shape, 1000 * i) for i, (a, b) in enumerate(zip(inputs, outputs, strict=True)))
        y, _ = self._joined(parts)
        numbers = gptq.NUMBERS if is_in_files(self.analysis.model) else None
        return LayerProblem(layer, layer.matrix(weight), bias, seen, y, self.analysis.powers, numbers, reach)

    def _inputs_of(self, layer: Layer) -> LayerInputs:
        """What a layer sees; kept for others that see the same until the last of them has asked for it."""
        reading = layer.reading
        inputs = self.shared.pop(reading, None) or self._drawn(layer)
        self.still[reading] -= 1
        if self.still[reading] > 0:
            self.shared[reading] = inputs
        return inputs

    def _drawn(self, layer: Layer) -> LayerInputs:
        inputs = self.seen.values[layer.input]
        seed = self.analysis.seed * 100_003 + self.draw * 1_000_003 + 50_021 + draws(self.plan.layers)[layer.name]
        counts = [len(moments.images(len(x))) for x in inputs[: self.split]]
        columns = ColumnSample(layer, moments.positions_per_sample(layer, sum(counts), self.columns), seed)
        totals = (count * columns.total(x.shape) for count, x in zip(counts, inputs, strict=False))
        columns = replace(columns, usual=max(1, sum(totals) // sum(counts)))
        return LayerInputs(columns, *self._joined(columns.inputs(a, 1000 * i) for i, a in enumerate(inputs)))

    def _joined(self, parts: Iterator[Held]) -> tuple[list[Joined], int]:
        """Columns of all batches in pieces, and how many of these are of batches that are fitted to."""
        held = map(self.bounded.keep, parts)
        fitted = list(moments.joined(islice(held, self.split)))
        return [*fitted, *moments.joined(held)], len(fitted)
