"""Weights that are numbers of additions (PANN) at the power of a multiplier of few bits, by the model of energy.

python benchmarks/additions.py [--tasks a,b] [--samples 64] [--out results.json]

PANN (Spingarn Eliezer et al. 2022, arXiv 2202.02783): w = q γ with γ = ‖w‖₁ / (R d), so that a product with an
activation of b bits is R additions on average, and takes (R + ½) b bit flips; a multiplier of b bits takes ½ b² + 4 b.
For the power of a 2-, 3- and 4-bit multiplier, both are simulated: weights and activations of so many bits, and PANN
with the bits of activations that lose least on held-back samples. Weights are rounded by GPTQ, activations by their
squared error, and biases make up for the mean error.

The model itself is compared with the bits that really change, in a simulation bit by bit of random products.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import agreement
import harness
import numpy as np
import onnx
import onnx_ir as ir
from format_networks import FormatNetwork, opened
from harness import Column, number
from onnx import helper, numpy_helper
from tasks import Task, chosen

from ptqc.artifact.report.energy import bit_flips
from ptqc.calibration.ranges import RangeObserver, affine_params, choose_range
from ptqc.execution.onnxruntime import Runner
from ptqc.formats import Affine, Grid, Integer, QuantParams
from ptqc.ir.nodes import initial
from ptqc.ir.sites import source_params
from ptqc.passes.quantize import gptq

TASKS = "mlperftiny_ic_resnet8,cifar10_resnet20"
MULTIPLIERS = (2, 3, 4)
WIDTHS = range(2, 9)
FEWEST_ADDITIONS = 0.25
PRODUCTS = 100_000
COLUMNS = (
    Column("task", "task"),
    Column("flips per product", "power", number(1)),
    Column("weights", "weights"),
    Column("bits of activations", "width", number(0)),
    Column("additions", "additions", number(2)),
    Column("score", "score", number(2)),
    *agreement.COLUMNS,
)


def ranges(network: FormatNetwork, bits: int) -> dict[str, QuantParams]:
    """Parameters of so many bits for every tensor that is rounded."""
    observed = network.observed
    observers = {site.name: RangeObserver() for site in observed.sites}
    taps = list(dict.fromkeys(source for site in observed.sites for source in site.sources))
    runner = Runner(observed.model, taps)
    for feeds in observed.tuning:
        values = {**feeds, **runner.run(feeds)}
        for site in observed.sites:
            for source in site.sources:
                observers[site.name].update(values[source])
    params = {}
    for name, observer in observers.items():
        scale, zero = affine_params(*choose_range(observer, "mse", bits), bits)
        params[name] = QuantParams(Affine(bits), float(scale), zero)
    return dict(source_params(observed.sites, params))


def rounded(network: FormatNetwork, additions: float | None, bits: int = 0) -> tuple[dict[str, np.ndarray], float]:
    """Weights and biases by name, and the additions of a product; of so many bits where no additions are given."""
    constants, spent, products = dict[str, np.ndarray](), 0.0, 0
    for layer in network.observed.layers:
        moments = network.observed.moments[layer.weight]
        matrix, second = layer.matrix(initial(network.observed.model, layer.weight)), moments.second(True)
        grid = Integer(bits).grid(matrix, gptq.importance_of(second)) if bits else _grid(matrix, additions or 1.0)
        (answer,) = gptq.round_all([gptq.RoundingTarget(matrix, grid, 1)], second)
        constants[layer.weight] = layer.tensor(answer.weight)
        spent += float(np.abs(answer.codes.astype(np.float64)).sum()) * network.observed.macs[layer.name] / matrix.size
        products += network.observed.macs[layer.name]
        if layer.bias is not None:
            shift = np.einsum("gok,gk->go", matrix - answer.weight, moments.mean).reshape(-1)
            constants[layer.bias] = np.asarray(initial(network.observed.model, layer.bias) + shift, np.float32)
    return constants, spent / products


def _grid(matrix: np.ndarray, additions: float) -> Grid:
    """All whole numbers that int8 holds; a channel's mean magnitude is so many additions."""
    scale = np.maximum(np.abs(matrix).mean(-1) / np.float32(additions), np.float32(2.0**-24))
    return Grid(scale, 1, lambda ratio, _: np.clip(np.rint(ratio), -127, 127))


def rows_of(name: str, samples: int) -> list[dict[str, Any]]:
    """All powers of a task; runs in a child."""
    task, rows = chosen(name)[0], []
    with opened(task, samples) as network:
        every = {bits: ranges(network, bits) for bits in WIDTHS}
        for multiplier in MULTIPLIERS:
            power = bit_flips(multiplier, multiplier, signed=False)
            plain, _ = rounded(network, None, multiplier)
            row = {"task": name, "power": power, "weights": f"{multiplier} bits", "width": multiplier}
            rows.append(row | _scored(task, network, every[multiplier], plain))
            tried = [(bits, *rounded(network, power / bits - 0.5)) for bits in WIDTHS if _is_possible(power, bits)]
            losses = [
                network.losses.rounded(network.observed.model, every[b], constants).mean() for b, constants, _ in tried
            ]
            bits, constants, additions = tried[int(np.argmin(losses))]
            row = {"task": name, "power": power, "weights": "PANN", "width": bits, "additions": additions}
            rows.append(row | _scored(task, network, every[bits], constants))
            harness.say(f"{name} {power}")
    return rows


def _is_possible(power: float, bits: int) -> bool:
    return power / bits - 0.5 >= FEWEST_ADDITIONS


def _scored(
    task: Task, network: FormatNetwork, params: dict[str, QuantParams], constants: dict[str, np.ndarray]
) -> dict[str, Any]:
    comparison = agreement.Agreement(task.has_classes)
    with tempfile.TemporaryDirectory(prefix="ptqc-bench-") as folder:
        path = Path(folder) / "rounded.onnx"
        onnx.save(rounding(ir.to_proto(network.observed.model), params, constants), path)
        run = agreement.compared(harness.open_model(task.path), harness.open_model(path), comparison)
        score = float(task.score(run))
    return {"score": score, "difference": score - task.float_score, **comparison.to_json()}


def rounding(
    model: onnx.ModelProto, params: dict[str, QuantParams], constants: dict[str, np.ndarray]
) -> onnx.ModelProto:
    """The model with other constants, whose nodes read these tensors rounded; in float, so in any bits."""
    graph = model.graph
    unchanged = [tensor for tensor in graph.initializer if tensor.name not in constants]
    replaced = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    nodes = [each for value in graph.input for each in _rounded_nodes(value.name, params)]
    for node in graph.node:
        node.input[:] = [f"{name}.rounded" if name in params else name for name in node.input]
        nodes += [node, *(each for name in node.output for each in _rounded_nodes(name, params))]
    limits = [
        numpy_helper.from_array(np.array(x, np.float32), name) for each in params for name, x in _numbers(each, params)
    ]
    del graph.initializer[:], graph.node[:]
    graph.initializer.extend([*unchanged, *replaced, *limits])
    graph.node.extend(nodes)
    return model


def _numbers(name: str, params: dict[str, QuantParams]) -> list[tuple[str, float]]:
    of, zero = params[name], params[name].zero_point
    limits = of.format.low - zero, of.format.high - zero
    return [(f"{name}.scale", of.scale), (f"{name}.low", limits[0]), (f"{name}.high", limits[1])]


def _rounded_nodes(name: str, params: dict[str, QuantParams]) -> list[onnx.NodeProto]:
    if name not in params:
        return []
    scale, low, high = (each for each, _ in _numbers(name, params))
    steps = [("Div", [name, scale]), ("Round", []), ("Clip", [low, high]), ("Mul", [scale])]
    nodes, last = [], name
    for place, (op_type, operands) in enumerate(steps):
        inputs = operands if place == 0 else [last, *operands]
        last = f"{name}.rounded" if place == len(steps) - 1 else f"{name}.{op_type}"
        nodes.append(helper.make_node(op_type, inputs, [last]))
    return nodes


def changed(values: np.ndarray) -> float:
    """Mean bits that change from each number to the next."""
    return float(np.bitwise_count(values[1:] ^ values[:-1]).mean())


def multiplied(a: np.ndarray, b: np.ndarray, bits: int) -> float:
    """Bits that change per product and its addition: of operands, rows of an array, product, and the sum twice.

    The sum changes where it is computed and where it is kept.
    """
    rows, total = np.zeros_like(a), 0.0
    for place in range(bits):
        rows = rows + np.where(a >> place & 1, b << place, 0)
        total += changed(rows >> place)  # the bits below are settled
    sums = np.cumsum(rows)
    return changed(a) + changed(b) + total + changed(rows) + 2 * changed(sums)


def added(x: np.ndarray, counts: np.ndarray) -> float:
    """The same of each number added as often as its count says, per number."""
    sums = np.cumsum(np.repeat(x, counts))
    return changed(x) + 2 * changed(sums) * len(sums) / len(x)


def simulated() -> Iterator[dict[str, Any]]:
    """The model against bits that really change, for random operands."""
    random = np.random.default_rng(0)
    for bits in range(2, 9):
        a, b = random.integers(0, 2**bits, (2, PRODUCTS), np.int64)
        counts = random.poisson(2.0, PRODUCTS)
        expected, pann = bit_flips(bits, bits, signed=False), (counts.mean() + 0.5) * bits
        flips = multiplied(a, b, bits)
        by_additions = added(b, counts)
        yield {
            "width": bits,
            "model": expected,
            "simulated": flips,
            "ratio": flips / expected,
            "model of 2 additions": pann,
            "simulated additions": by_additions,
            "ratio of additions": by_additions / pann,
        }


MODEL_COLUMNS = (
    Column("bits", "width", number(0)),
    Column("multiplier, model", "model", number(1)),
    Column("simulated", "simulated", number(1)),
    Column("ratio", "ratio", number(2)),
    Column("2 additions, model", "model of 2 additions", number(1)),
    Column("simulated", "simulated additions", number(1)),
    Column("ratio", "ratio of additions", number(2)),
)


def parse() -> argparse.Namespace:
    parser = harness.command_line(__doc__)
    parser.add_argument("--tasks", default=TASKS, help="comma-separated")
    parser.add_argument("--samples", type=int, default=64, help="calibration samples")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    print(harness.markdown(list(simulated()), MODEL_COLUMNS))
    names = [task.name for task in chosen(arguments.tasks)]
    harness.tabulate(names, rows_of, (arguments.samples,), COLUMNS, arguments.out)


if __name__ == "__main__":
    main()
