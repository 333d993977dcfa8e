from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse
from lowering import CONSTANTS, RESIDUAL, TABLE_CONSTANTS, TABLES, array
from measuring import measured
from numpy.testing import assert_allclose

from ptqc.calibration.inputs import input_specs
from ptqc.calibration.samples import collect
from ptqc.errors import TimeTooShort
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.execution.walk import Slicer, Suffix, Values
from ptqc.formats import FLOAT16, FLOAT32, Codebook, Format, Integer, Palette, VectorCodebook
from ptqc.ir.layers import Weight
from ptqc.losses import UNITS, OutputLoss, recognize
from ptqc.notes import Level
from ptqc.passes.quantize import measure_sensitivity
from ptqc.passes.quantize.measure_sensitivity import (
    NEGLIGIBLE,
    MeasureSensitivity,
    _interpolated,
    anchor_forms,
    loss_of_noise,
    mean_shift,
)
from ptqc.passes.quantize.phases import CalibrationStats, Sensitivities
from ptqc.passes.quantize.solve_weights import SolveWeights, formats_of
from ptqc.passes.reconstruct.quantized_walk import run_quantized
from ptqc.utils.deadline import Deadline, Pace


def loss_of(model: ir.Model, context: Sensitivities, outputs: list[dict[str, np.ndarray]]) -> float:
    """Mean over batches of what the outputs lose against the float model's."""
    real = list(map(Runner(model).run, context.held_back.batches(8)))
    loss = OutputLoss.of(context.kinds, real)
    return float(np.mean([loss(a, b) for a, b in zip(real, outputs, strict=True)]))


@pytest.fixture(scope="module")
def residual() -> ir.Model:
    return parse(RESIDUAL, **CONSTANTS)


@pytest.fixture(scope="module")
def context(residual: ir.Model, tmp_path_factory: pytest.TempPathFactory) -> Sensitivities:
    feeds: list[Feeds] = [{"x": noise(1, 3, 8, 8, seed=seed)} for seed in range(24)]
    return measured(residual, feeds, tmp_path_factory.mktemp("samples"))


def test_a_site_alone(residual: ir.Model, context: Sensitivities) -> None:
    batches = list(context.held_back.batches(8))
    for site in context.sites:
        if len(site.sources) > 1:
            continue
        outputs = run_quantized(Slicer(residual), batches, {site.sources[0]: context.ranges[site.name]})
        assert context.site_losses[site.name] == pytest.approx(loss_of(residual, context, outputs), rel=0.01, abs=1e-9)
    assert set(context.site_losses) == {site.name for site in context.sites}


@pytest.mark.parametrize(("wider", "is_taken"), [(32, True), (1, False)])
def test_a_site_that_matters_takes_the_range_that_loses_least(
    wider: int, is_taken: bool, residual: ir.Model, context: Sensitivities
) -> None:
    right = dict(context.ranges)
    wide = {name: replace(params, scale=params.scale * wider) for name, params in right.items()}
    others = {name: (params,) for name, params in right.items()}
    changed = replace(context, ranges=dict(wide), site_losses={}, weight_losses={}, other_ranges=others)
    changed = MeasureSensitivity().apply(changed).output
    batches = list(context.held_back.batches(8))
    for site in context.sites:
        losses = [
            loss_of(residual, context, run_quantized(Slicer(residual), batches, {site.name: params[site.name]}))
            for params in (wide, right)
        ]
        matters = losses[0] > NEGLIGIBLE * UNITS[context.loss_unit].tolerance
        assert changed.ranges[site.name] == (right if matters and losses[1] < losses[0] else wide)[site.name], site
        assert changed.site_losses[site.name] == pytest.approx(
            min(losses) if matters else losses[0], rel=0.01, abs=1e-9
        )
    assert (changed.ranges != wide) is is_taken


@pytest.mark.parametrize("bits", [2, 4])
def test_a_layer_alone_with_its_mean_kept(residual: ir.Model, context: Sensitivities, bits: int) -> None:
    batches = list(context.held_back.batches(8))
    for layer in context.layers:
        solution = context.solutions[layer.weight, Integer(bits)]
        if layer.bias is None or len([x for x in context.layers if x.bias == layer.bias]) > 1:
            continue
        shift = mean_shift(context, layer, solution.weight)
        constants = {layer.weight: solution.weight, layer.bias: array(residual, layer.bias) + shift}
        expected = loss_of(residual, context, run_quantized(Slicer(residual), batches, {}, constants))
        result = context.weight_losses[layer.weight, Integer(bits)]
        assert result == pytest.approx(expected, rel=0.02)


def test_a_product_of_tokens_has_no_bias_that_keeps_its_mean(tmp_path: Path) -> None:
    """Gemm takes no rank 3, so nothing in the file makes up for the mean error of a MatMul's weights."""
    graph = "g (float[N,4,16] x) => (float[N,4,24] y) { h = MatMul(x, w) s = Add(h, b) y = Tanh(s) }"
    model = parse(graph, w=0.1 * noise(16, 24), b=noise(24, seed=1))
    feeds: list[Feeds] = [{"x": 3 + noise(1, 4, 16, seed=seed)} for seed in range(24)]
    context = measured(model, feeds, tmp_path)
    batches = list(context.held_back.batches(8))
    for bits in (2, 4):
        constants = {"w": context.solutions["w", Integer(bits)].weight}
        expected = loss_of(model, context, run_quantized(Slicer(model), batches, {}, constants))
        assert context.weight_losses["w", Integer(bits)] == pytest.approx(expected, rel=0.02)


def test_a_weight_in_two_roles_is_measured_once(tmp_path: Path) -> None:
    """As it is and transposed, as tied autoencoders have it: it is rounded for itself, in both products at a time."""
    graph = "g (float[N,16] x) => (float[N,16] y) { h = Gemm(x, w, b) s = Relu(h) y = Gemm<transB=1>(s, w) }"
    model = parse(graph, w=0.1 * noise(16, 24), b=noise(24, seed=1))
    feeds: list[Feeds] = [{"x": noise(1, 16, seed=seed)} for seed in range(24)]
    context = measured(model, feeds, tmp_path)
    assert context.fitted_layers == ()
    assert len(context.layers) == 2
    batches = list(context.held_back.batches(8))
    for bits in (2, 4):
        constants = {"w": context.solutions["w", Integer(bits)].weight}
        expected = loss_of(model, context, run_quantized(Slicer(model), batches, {}, constants))
        assert context.weight_losses["w", Integer(bits)] == pytest.approx(expected, rel=0.02)


def test_losses_never_grow_with_the_bits(context: Sensitivities) -> None:
    for weight in context.weights:
        losses = [context.weight_losses[weight.name, Integer(bits)] for bits in (2, 3, 4, 8)]
        assert losses == sorted(losses, reverse=True)
        assert losses[0] > losses[-1] > 0
        assert context.weight_losses[weight.name, FLOAT16] == context.weight_losses[weight.name, FLOAT32] == 0
    assert context.loss_unit == context.kinds["y"].unit.name


@pytest.mark.parametrize(
    ("widths", "measured_ones"),
    [
        ((2, 3, 4, 5, 6, 7, 8), (2, 4)),
        ((4, 6), (4,)),
        ((3, 4), (3, 4)),
        ((3, 5, 7), (3, 5)),
        ((5, 8), (5,)),
        ((8,), (8,)),
    ],
)
def test_widths_near_2_and_4_bits_are_measured(widths: tuple[int, ...], measured_ones: tuple[int, ...]) -> None:
    assert anchor_forms(formats_of(widths, [])) == tuple(map(Integer, measured_ones))


@pytest.mark.parametrize("family", [Codebook, VectorCodebook])
def test_another_family_is_measured_where_there_are_no_integers(family: type[Format]) -> None:
    forms = [FLOAT16, *family.members()]
    assert [form.bits_per_weight for form in anchor_forms(forms)] == [2, 4]
    assert anchor_forms([FLOAT16, Palette(2)]) == ()


def test_a_loss_is_measured_whatever_the_widths(residual: ir.Model, tmp_path: Path) -> None:
    feeds: list[Feeds] = [{"x": noise(1, 3, 8, 8, seed=seed)} for seed in range(24)]
    context = measured(residual, feeds, tmp_path, bits=(5, 8))
    for weight in context.weights:
        narrow, wide = (context.weight_losses[weight.name, Integer(bits)] for bits in (5, 8))
        assert narrow > wide > 0


def test_a_local_error_that_grew_with_the_bits_counts_no_more(context: Sensitivities) -> None:
    name = context.weights[0].name
    errors = {**context.errors, (name, Integer(8)): 2 * context.errors[name, Integer(2)]}
    anchors: dict[Format, float] = {form: context.weight_losses[name, form] for form in (Integer(2), Integer(4))}
    result = _interpolated(replace(context, errors=errors), name, anchors)
    losses = [result[name, Integer(bits)] for bits in (2, 3, 4, 8)]
    assert losses == sorted(losses, reverse=True)


def test_the_shift_is_what_the_mean_input_loses(residual: ir.Model, context: Sensitivities) -> None:
    for layer in context.layers:
        weight = context.solutions[layer.weight, Integer(2)].weight
        delta = layer.matrix(array(residual, layer.weight) - weight)
        expected = delta @ context.moments[layer.weight].mean[..., None]
        assert_allclose(mean_shift(context, layer, weight), expected.reshape(-1), atol=1e-5)


def test_tables_and_palettes(tmp_path: Path) -> None:
    feeds: list[Feeds] = [{"i": np.random.default_rng(seed).integers(0, 50, (1, 10))} for seed in range(24)]
    context = measured(parse(TABLES, **TABLE_CONSTANTS), feeds, tmp_path)
    forms = {form for name, form in context.weight_losses if name == "mask" and isinstance(form, Palette)}
    assert len(forms) == 1
    assert context.weight_losses["mask", forms.pop()] == 0
    assert context.weight_losses["embedding", Integer(2)] > context.weight_losses["embedding", Integer(4)] > 0


def test_nodes_with_several_outputs(tmp_path: Path) -> None:
    """Behind one output that is rounded, the rest of the graph reads the others as well."""
    graph = """g (float[N, 6, 8, 8] x) => (float[N, 3, 8, 8] y) {
        s = Tanh(x)
        p, i = MaxPool <kernel_shape = [1, 1]> (s)
        c = Conv(p, w)
        f = Cast <to = 1> (i)
        m = ReduceMean <keepdims = 1> (f)
        y = Div(c, m)
    }"""
    model = parse(graph, w=noise(3, 6, 1, 1))
    feeds: list[Feeds] = [{"x": noise(1, 6, 8, 8, seed=seed)} for seed in range(24)]
    context = measured(model, feeds, tmp_path)
    assert context.site_losses["p"] > 0


def test_tensors_that_are_tied_keep_their_range(tmp_path: Path) -> None:
    text = """g (float[N, 3, 8, 8] x) => (float[N, 4] y) {
        a = Conv(x, v) b = Conv(x, w) d = Concat <axis = 1> (a, b) m = GlobalAveragePool(d)
        f = Flatten(m) y = Gemm(f, u)
    }"""
    model = parse(text, v=noise(4, 3, 1, 1), w=noise(4, 3, 1, 1, seed=1), u=noise(8, 4, seed=2))
    feeds: list[Feeds] = [{"x": noise(1, 3, 8, 8, seed=seed)} for seed in range(24)]
    context = measured(model, feeds, tmp_path)
    (tied,) = [site for site in context.sites if len(site.sources) > 1]
    right = context.ranges[tied.name]
    wide = replace(right, scale=right.scale * 32)
    others = {**context.other_ranges, tied.name: (right,)}
    changed = replace(context, ranges={**context.ranges, tied.name: wide}, other_ranges=others)
    changed = MeasureSensitivity().apply(changed).output
    assert changed.site_losses[tied.name] > NEGLIGIBLE * UNITS[context.loss_unit].tolerance
    assert changed.ranges[tied.name] == wide


def test_what_matters_depends_on_the_limit(context: Sensitivities) -> None:
    name = context.sites[0].name
    right = context.ranges[name]
    wide = replace(right, scale=right.scale * 8)
    for limit, kept in ((1e6, wide), (1e-6, right)):
        others = {**context.other_ranges, name: (right,)}
        changed = replace(context, ranges={**context.ranges, name: wide}, other_ranges=others)
        changed = MeasureSensitivity(limit=limit).apply(changed).output
        assert changed.ranges[name] == kept


def test_a_branch_that_no_sample_takes_loses_like_the_other(tmp_path: Path) -> None:
    """Otherwise its weights were taken to be of no use, and stored in two bits."""
    model = parse(
        """g (float[N, 16] x, bool c) => (float[N, 16] y) {
            y = If(c) <then_branch = t () => (float[N, 16] a) { a = MatMul(x, w) },
                       else_branch = e () => (float[N, 16] b) { b = MatMul(x, v) }>
        }""",
        w=noise(16, 16),
        v=noise(16, 16, seed=1),
    )
    feeds: list[Feeds] = [{"x": noise(1, 16, seed=seed), "c": np.array(True)} for seed in range(24)]
    samples = collect(feeds, input_specs(model), tmp_path, 10_000)
    solved = SolveWeights((2, 4)).apply(CalibrationStats.of(model, samples[:16], samples[16:])).output
    result = MeasureSensitivity().apply(solved)
    context, notes = result.output, result.notes
    (warning,) = [note for note in notes if note.level == Level.WARNING]
    assert warning.subject == "v"
    assert "give samples that take every branch" in warning.message
    for form in (Integer(2), Integer(4)):
        taken, other = (context.weight_losses[name, form] for name in ("w", "v"))
        assert 0.2 < other / taken < 5


def short(context: Sensitivities, **changes: object) -> Sensitivities:
    """A copy to measure again."""
    return replace(context, site_losses={}, weight_losses={}, ranges=dict(context.ranges), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("quantizable", [True, False])
def test_without_time_losses_follow_the_local_errors(context: Sensitivities, quantizable: bool) -> None:
    """Also where not even a site at the input was looked at: a loss of zero would ask for the narrowest weights."""
    late = short(context, deadline=Deadline(0.0), sites=context.sites if quantizable else [])
    result = MeasureSensitivity(last=Deadline(0.0)).apply(late)
    late, notes = result.output, list(result.notes)
    assert [note.step for note in notes] == ["time-limit"]
    assert set(late.site_losses) == {site.name for site in late.sites}
    assert set(late.weight_losses) == set(context.weight_losses)
    for weight in context.weights:
        losses = [late.weight_losses[weight.name, Integer(bits)] for bits in (2, 3, 4, 8)]
        assert losses == sorted(losses, reverse=True)
        assert losses[0] > losses[-1] > 0


@pytest.mark.parametrize(
    ("bits", "is_large", "free", "assumed"),
    [((4,), True, (), 3), ((4,), False, (), 0), ((2, 4), True, (), 0), ((4,), True, ("w", "point"), 1)],
)
def test_weights_of_large_models_that_can_take_one_format_are_hardly_measured(
    context: Sensitivities,
    monkeypatch: pytest.MonkeyPatch,
    bits: tuple[int, ...],
    is_large: bool,
    free: tuple[str, ...],
    assumed: int,
) -> None:
    """The losses of the others are those of their local errors at the usual rate. free: may take all formats."""
    monkeypatch.setattr(measure_sensitivity, "is_in_files", lambda _: is_large)
    monkeypatch.setattr(measure_sensitivity, "SAMPLED_WEIGHTS", 2)
    asked = [Integer(each) for each in bits]

    def choices(weight: Weight, forms: Sequence[Format]) -> list[Format]:
        return [form for form in forms if weight.name in free or form in asked]

    result = MeasureSensitivity(choices=choices).apply(short(context, sites=()))
    actual = {key: loss for key, loss in result.output.weight_losses.items() if key[1] == Integer(4)}
    changed = {key: loss for key, loss in actual.items() if loss != pytest.approx(context.weight_losses[key])}
    assert len(changed) == assumed
    rates = [loss / context.errors[key] for key, loss in changed.items()]
    assert rates == pytest.approx([*rates[:1]] * assumed)
    messages = [f"the losses of {assumed} of {len(context.weights)} weights that can"] if assumed else []
    assert [note.message[: len(messages[0])] for note in result.notes] == messages


def test_with_little_time_few_samples_do(context: Sensitivities, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pace, "part", lambda _: 0.5)
    runs: list[int | None] = []
    run = Suffix.run
    monkeypatch.setattr(Suffix, "run", lambda self, value, n=None: runs.append(n) or run(self, value, n))
    rough = MeasureSensitivity().apply(short(context)).output
    assert set(runs[1:]) == {4}
    assert 0.3 < sum(rough.weight_losses.values()) / sum(context.weight_losses.values()) < 3  # one sample matters
    assert rough.weight_losses.keys() == context.weight_losses.keys()


def test_the_pace_knows_how_much_there_is_to_do(context: Sensitivities, monkeypatch: pytest.MonkeyPatch) -> None:
    paces: list[Pace] = []
    init = Pace.__init__
    monkeypatch.setattr(Pace, "__init__", lambda self, *arguments: paces.append(self) or init(self, *arguments))
    again = MeasureSensitivity().apply(short(context, other_ranges=dict.fromkeys(context.other_ranges, ()))).output
    (pace,) = paces
    assert pace._passed == pytest.approx(pace.total)
    assert again.weight_losses == context.weight_losses


@pytest.mark.parametrize("rows", ["e = Gather(t, i)", "e = Gather(t, i) f = Gather(t, i) g = Sub(f, e)"])
def test_a_tied_table_loses_what_all_of_its_readers_lose(rows: str, tmp_path: Path) -> None:
    """Read by one node or by two."""
    table, feeds = noise(50, 8), [{"i": np.random.default_rng(seed).integers(0, 50, (1, 10))} for seed in range(24)]
    graph = f"g (int64[N, T] i) => (float[N, T, 50] y) {{ {rows} z = MatMul(e, w) y = MatMul(z, h) }}"
    model = parse(graph, t=table, w=noise(8, 8, seed=1), h=table.T.copy())
    context = measured(model, list(feeds), tmp_path)
    assert [weight.table for weight in context.weights] == [None, "t"]
    batches = list(context.held_back.batches(8))
    for bits in (2, 4):
        head = context.solutions["h", Integer(bits)].weight
        parts = [run_quantized(Slicer(model), batches, {}, one) for one in ({"h": head}, {"t": head.T.copy()})]
        expected = sum(loss_of(model, context, outputs) for outputs in parts)
        assert context.weight_losses["h", Integer(bits)] == pytest.approx(expected, rel=0.05)


RECURRENT = """g (float[N, 6] x) => (float[N, 6] y) {
    a = MatMul(x, w) b = Tanh(a) c = MatMul(b, w) d = Tanh(c) e = MatMul(d, w) f = Tanh(e) y = MatMul(f, v)
}"""


def test_a_weight_of_several_layers_is_measured_in_all_at_once(tmp_path: Path) -> None:
    """Its errors are alike at every step, so that the loss is not the sum of those of the steps alone."""
    model = parse(RECURRENT, w=noise(6, 6), v=noise(6, 6, seed=1))
    context = measured(model, [{"x": noise(1, 6, seed=seed)} for seed in range(24)], tmp_path)
    for form in (Integer(2), Integer(4)):
        changed = model.clone()
        changed.graph.initializers["w"].const_value = ir.tensor(context.solutions["w", form].weight)
        outputs = list(map(Runner(changed).run, context.held_back.batches(8)))
        assert context.weight_losses["w", form] == pytest.approx(loss_of(model, context, outputs), rel=1e-3)


def test_what_was_not_measured_is_predicted_from_local_errors_at_all_places(tmp_path: Path) -> None:
    model = parse(RECURRENT, w=noise(6, 6), v=noise(6, 6, seed=1))
    context = measured(model, [{"x": noise(1, 6, seed=seed)} for seed in range(24)], tmp_path)
    late = MeasureSensitivity(last=Deadline(0.0)).apply(replace(context, deadline=Deadline(0.0))).output
    errors = context.errors["w", Integer(4)], context.errors["v", Integer(4)]
    predicted = late.weight_losses["w", Integer(4)], late.weight_losses["v", Integer(4)]
    assert predicted[0] / predicted[1] == pytest.approx(3 * errors[0] / errors[1])
    for name in ("w", "v"):
        assert 0.1 < late.weight_losses[name, Integer(4)] / context.weight_losses[name, Integer(4)] < 10


def test_the_loss_of_an_error_depends_on_the_outputs() -> None:
    """Scores that are five times as large lose more by the same relative error."""
    rng = np.random.default_rng(0)
    small = [{"y": rng.standard_normal((8, 10)).astype(np.float32) / 5}]
    large = [{"y": 5 * small[0]["y"]}]
    model = parse("g (float[N, 10] x) => (float[N, 10] y) { y = MatMul(x, w) }", w=noise(10, 10))
    kinds = recognize(model, {"x": noise(8, 10)}, small, "logits")
    losses = [loss_of_noise(OutputLoss.of(kinds, outputs), outputs) for outputs in (small, large)]
    assert losses[1] > 3 * losses[0] > 0


def test_too_few_measured_weights_are_no_ground_for_a_file(context: Sensitivities) -> None:
    late = replace(context, deadline=Deadline(0.0))
    with pytest.raises(TimeTooShort, match=r"measure what 0 of \d weights lose") as raised:
        MeasureSensitivity(last=Deadline(0.0), floor=0.5).apply(late)
    assert raised.value.seconds > 0


def test_one_sample_is_measured_before_a_compile_is_given_up(
    context: Sensitivities, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = list[int]()
    loss_mean = OutputLoss.mean

    def mean(self: OutputLoss, reference: Sequence[Values], outputs: Iterable[Values]) -> float:
        run.append(len(reference))
        return loss_mean(self, reference, outputs)

    monkeypatch.setattr(OutputLoss, "mean", mean)
    result = MeasureSensitivity(floor=0.5).apply(short(context, deadline=Deadline(0.0)))
    assert [note.step for note in result.notes] == ["time-limit"]
    assert f"{len(context.weights)} of {len(context.weights)} weights, roughly" in result.notes[0].message
    assert set(run) == {1}
    for form in (Integer(2), Integer(4)):
        assert all(result.output.weight_losses[weight.name, form] > 0 for weight in context.weights)
