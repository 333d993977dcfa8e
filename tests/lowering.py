"""A float model quantized the plainest way: ranges from what was seen, weights rounded, biases kept."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from graphs import noise

from ptqc.calibration.ranges import affine_params
from ptqc.execution.onnxruntime import Feeds, Runner, session_options
from ptqc.execution.walk import Slicer
from ptqc.formats import (
    BFLOAT16,
    UINT8,
    ActivationParams,
    FloatActivation,
    Format,
    Integer,
    Palette,
    QuantParams,
    Scaled,
)
from ptqc.ir.layers import Weight, find_layers, find_weights
from ptqc.ir.lowered import Lowered
from ptqc.ir.plan import Plan
from ptqc.ir.quantized_weight import QuantizedParameters, QuantizedWeight, with_tables
from ptqc.ir.sites import find_kernels, find_sites, useful_sites
from ptqc.passes.allocate.lower import Lower
from ptqc.passes.quantize.phases import PlanWithParameters
from ptqc.passes.quantize.solve_weights import direct
from ptqc.passes.reconstruct.quantized_walk import run_quantized

EIGHT = Integer(8)
SEVEN = Integer(7)
NOTHING = np.empty(0, np.float32)


@dataclass(frozen=True)
class Quantized:
    """A model with a plan, the plan's numbers, and the graph that they lower to."""

    model: ir.Model
    plan: Plan
    tuned: QuantizedParameters
    lowered: Lowered

    def run(self, feeds: Feeds, *, optimize: bool = True) -> dict[str, np.ndarray]:
        """Outputs of the lowered graph."""
        return Runner(self.lowered.model, options=session_options(optimize=optimize)).run(feeds)

    def simulate(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Outputs of the float graph with every source tensor and weight rounded."""
        weights = {name: solution.weight for name, solution in self.tuned.weights.items()}
        return run_quantized(Slicer(self.model), [feeds], self.plan.rounded, weights)[0]


def quantized(
    model: ir.Model,
    samples: Sequence[Feeds],
    *,
    forms: Mapping[str, Format] | Format = EIGHT,
    keep_float: Callable[[str], bool] = lambda _site: False,
    params: Mapping[str, ActivationParams] | None = None,
    is_rounded: Callable[[str], bool] = lambda _site: False,
    to: FloatActivation = BFLOAT16,
    fused: bool = False,
) -> Quantized:
    """Lower a model with all useful sites quantized but those kept float, some of which are rounded.

    forms: of all weights, or by name (others 8 bit). params: of some sites; of the others from the samples. to: what is
    rounded. fused: only what layers and sums read is quantized.
    """
    layers = find_layers(model)
    kernels = find_kernels(model, layers, fused=fused)
    weights = find_weights(model, layers)
    sites = useful_sites(find_sites(model, kernels, fused=fused), kernels, {layer.name for layer in layers})
    chosen = [site for site in sites if not keep_float(site.name)]
    activations = {**observed(model, samples, chosen), **(params or {})}
    formats = {w.name: forms if isinstance(forms, Format) else forms.get(w.name, EIGHT) for w in weights}
    others = [site for site in sites if site not in chosen and is_rounded(site.name)]
    reals = {name: to.of_range(one.low, one.high) for name, one in observed(model, samples, others).items()}
    plan = Plan(tuple(layers), tuple(weights), tuple(kernels), tuple(sites), {**activations, **reals}, formats)
    solutions = {weight.name: rounded(model, weight, formats[weight.name]) for weight in weights}
    biases = {layer.name: _bias(model, layer.bias) for layer in layers}
    tuned = QuantizedParameters(with_tables(solutions, weights), biases)
    return Quantized(model, plan, tuned, Lower().apply(PlanWithParameters(model, plan, tuned)).output)


def observed(model: ir.Model, samples: Sequence[Feeds], sites: Sequence[object]) -> dict[str, QuantParams]:
    """Parameters of sites from the extremes of their sources."""
    names = [source for site in sites for source in site.sources]  # type: ignore[attr-defined]
    if not names:
        return {}
    runner, result = Runner(model, names), {}
    runs = [{**feeds, **runner.run(feeds)} for feeds in samples]
    for site in sites:
        values = np.concatenate([run[s].ravel() for run in runs for s in site.sources])  # type: ignore[attr-defined]
        scale, zero = affine_params(float(values.min()), float(values.max()), 8)
        result[site.name] = QuantParams(UINT8, float(scale), zero)  # type: ignore[attr-defined]
    return result


def rounded(model: ir.Model, weight: Weight, form: Format) -> QuantizedWeight:
    """A weight in a format, by plain rounding."""
    values = array(model, weight.name)
    if (
        isinstance(form, Scaled) and form.along_inputs and values.ndim > 2
    ):  # which are the last axis behind that of the taps
        codes, scale = form.rounded(np.moveaxis(values, 1, -1), 0)
        return QuantizedWeight(form, np.moveaxis(codes, -1, 1), scale, 0)
    if isinstance(form, Scaled):
        return QuantizedWeight(form, *form.rounded(values, weight.channel_axis), weight.channel_axis)
    result = direct(weight, values)
    return next(one for one in result if one.form == form or {one.form.family, form.family} == {"palette"})


def array(model: ir.Model, name: str) -> np.ndarray:
    """The values of an initializer."""
    tensor = model.graph.initializers[name].const_value
    assert tensor is not None
    return tensor.numpy()


def _bias(model: ir.Model, name: str | None) -> np.ndarray | None:
    return None if name is None else array(model, name).reshape(-1)


# Networks


def samples(*shape: int, count: int = 4) -> list[Feeds]:
    return [{"x": noise(*shape, seed=seed)} for seed in range(count)]


RESIDUAL = """g (float[N, 3, 8, 8] x) => (float[N, 5] y) {
    c = Conv <pads = [1, 1, 1, 1]> (x, w, b)
    r = Relu(c)
    d = Conv <pads = [1, 1, 1, 1], group = 4> (r, depth, b)
    q = Clip(d, zero, six)
    e = Conv(q, point)
    s = Add(e, r)
    t = Relu(s)
    p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (t)
    f = Conv <strides = [2, 2]> (p, other, b)
    j = Concat <axis = 1> (f, f)
    m = GlobalAveragePool(j)
    h = Flatten(m)
    y = Gemm <transB = 1> (h, head, hb)
}"""
CONSTANTS = {
    "w": noise(4, 3, 3, 3, scale=0.4),
    "b": noise(4, seed=9),
    "depth": noise(4, 1, 3, 3, seed=1, scale=0.4),
    "point": noise(4, 4, 1, 1, seed=2),
    "other": noise(4, 4, 2, 2, seed=3),
    "head": noise(5, 8, seed=4),
    "hb": noise(5, seed=5),
    "zero": np.array(0, np.float32),
    "six": np.array(6, np.float32),
}
C = "c = Conv(x, w) "
SMALL = {
    "w": noise(6, 6, 1, 1, scale=0.4),
    "v": noise(6, 6, 1, 1, seed=1, scale=0.4),
    "low": np.array(-0.75, np.float32),
    "high": np.array(1.25, np.float32),
    "pads": np.array([0, 0, 1, 2, 0, 0, 0, 1]),
    "zero": np.array(0, np.float32),
    "axes": np.array([2]),
    "two": np.array([2]),
    "four": np.array([4]),
    "one": np.array([1]),
    "order": np.array([5, 0, 3, 2, 1, 4]),
    "scales": np.array([1, 1, 2, 2], np.float32),
    "rows": np.array([0, 6, -1]),
    "map": np.array([0, 6, 8, 8]),
    "repeated": np.array([1, 1, 8, 1]),
}
Y = "float[N, 6, H, W] y"
GRAPHS = {
    "the output is quantized": (C + "y = Conv(c, v)", Y),
    "a relu is the output": (C + "y = Relu(c)", Y),
    "a clip is the output": (C + "y = Clip(c, zero, high)", Y),
    "the value behind an absorbed relu is an output": (C + "r = Relu(c) y = Conv(r, v)", f"{Y}, float[N, 6, 8, 8] r"),
    "a relu that is not absorbed": (C + "r = Relu(c) s = Conv(r, v) y = Add(s, c)", Y),
    "an inner value is an output": (
        C + "r = MaxPool <kernel_shape = [2, 2]> (c) y = Conv(r, v)",
        f"{Y}, float[N, 6, 8, 8] c, float[N, 6, 7, 7] r",
    ),
    "a moved value is the output": (C + "y = MaxPool <kernel_shape = [2, 2]> (c)", Y),
    "the input is moved first": ("r = MaxPool <kernel_shape = [2, 2]> (x) y = Conv(r, w)", Y),
    "the input is also used in float": ("t = Tanh(x) c = Conv(x, w) y = Sub(t, c)", Y),
    "the input is also an output": ("y = Conv(x, w) z = Identity(x)", f"{Y}, float[N, 6, 8, 8] z"),
    "other bounds": (C + "r = Clip(c, low, high) y = Conv(r, v)", Y),
    "a lower bound": (C + "r = Clip(c, low) y = Conv(r, v)", Y),
    "an upper bound": (C + "r = Clip(c, , high) y = Conv(r, v)", Y),
    "padding": (C + "r = Pad(c, pads) y = Conv(r, v)", Y),
    "padding with a zero": (C + "r = Pad(c, pads, zero) y = Conv(r, v)", Y),
    "padding by the edge": (C + 'r = Pad <mode = "edge"> (c, pads) y = Conv(r, v)', Y),
    "halves": (C + "p, q = Split <axis = 2, num_outputs = 2> (c) d = Conv(p, v) e = Conv(q, v) y = Add(d, e)", Y),
    "slices": (C + "r = Slice(c, one, four, axes, two) y = Conv(r, v)", Y),
    "gathered channels": (C + "r = Gather <axis = 1> (c, order) y = Conv(r, v)", Y),
    "nearest neighbours": (C + 'r = Resize <mode = "nearest"> (c, , scales) y = Conv(r, v)', Y),
    "turned and back": (
        C + "t = Transpose <perm = [0, 1, 3, 2]> (c) r = Reshape(t, rows) s = Reshape(r, map) y = Conv(s, v)",
        Y,
    ),
    "squeezed and back": (
        "m = GlobalAveragePool(x) q = Squeeze(m, axes) u = Unsqueeze(q, axes) e = Expand(u, repeated) y = Conv(e, w)",
        Y,
    ),
    "concatenation with an input": (C + "r = Concat <axis = 2> (c, x) y = Conv(r, v)", Y),
    "a value twice": (C + "r = Concat <axis = 2> (c, c) s = Add(r, r) y = Conv(s, v)", Y),
    "a product": (C + "d = Conv(x, v) r = Mul(c, d) y = Conv(r, v)", Y),
    "float in between": (C + "t = Tanh(c) y = Conv(t, v)", Y),
    "squared": (C + "y = Mul(c, c)", Y),
    "two readers": (C + "d = Conv(c, v) t = Tanh(c) y = Sub(d, t)", Y),
    "a shared weight": (C + "d = Conv(c, w) y = Conv(d, w)", Y),
}


# The same as whole networks.
FLOAT_GRAPHS = {
    kind: f"g (float[N, 6, 8, 8] x) => ({outputs}) {{ {nodes} }}" for kind, (nodes, outputs) in GRAPHS.items()
}


SUBGRAPH = """g (float[N, 6, 8, 8] x, bool k) => (float[N, 6, 8, 8] y) {
    c = Conv(x, w)
    y = If (k) <
        then_branch = then () => (float[N, 6, 8, 8] a) { a = Tanh(c) },
        else_branch = other () => (float[N, 6, 8, 8] b) { b = Neg(c) }
    >
}"""


TABLES = """g (int64[N, T] i) => (float[N, T, 6] y) {
    e = Gather(embedding, i)
    z = MatMul(e, m)
    s = Add(z, mask)
    y = MatMul(s, h)
}"""
TABLE_CONSTANTS = {
    "embedding": noise(50, 8),
    "m": noise(8, 40, seed=1),
    "mask": np.where(np.random.default_rng(0).random((10, 40)) < 0.5, np.float32(0), np.float32(-1)),
    "h": noise(40, 6, seed=2),
}
PALETTE = Palette(1)
WORDS: list[Feeds] = [{"i": np.random.default_rng(seed).integers(0, 50, (3, 10))} for seed in range(3)]
