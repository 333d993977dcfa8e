"""Number formats of the literature beside those of ptqc, on the same weights and activations.

python benchmarks/formats.py [--tasks a,b] [--parts weights,losses] [--samples 32] [--out results.json]

Every weight is rounded for itself, with scales of least error where a format leaves them free: what a solver gains on
top, it gains in all of them. Formats are compared at equal bits: with what ptqc has at as many, between neighbours of
its own on the line that joins them. Parts: weights and activations (dB), losses (of whole networks in one format), and
choices (what an integer program takes for each weight where all formats are offered).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import harness
import numpy as np
from format_networks import FormatNetwork, opened
from harness import Column, number
from number_formats import ACTIVATIONS, BEYOND, PRODUCT, WHOLE, NumberFormat, Rows, decibels
from tasks import chosen

from ptqc.formats import Integer
from ptqc.ir.layers import Weight
from ptqc.solver.integer_program import Goal, JointChoice, Option, solve

TASKS = "cifar10_resnet20,mobilenet_v1_075_224,squeezenet1_1,mlperftiny_vww_mbv1_025_96,minilm_l6_v2_emb,stories260K"
# Weights that are rounded for losses of whole networks: of more, every second or third layer, and no larger table.
ROUNDED = 2**21
# Formats in which each weight's loss is measured; those of the others follow by a power law of their errors.
ANCHORS = PRODUCT[0], PRODUCT[2]  # int2 and int4
EXPONENTS = 0.5, 2.0
SMALLEST_LOSS = 1e-9
# Mean bits of a weight, with scales and tables: 18, 13 and 10 % of float32.
BUDGETS = {"18%": 5.76, "13%": 4.16, "10%": 3.2}
BITS, LOSS = "bits", "loss"

Point = tuple[float, float]  # bits per weight, and something that is better the larger it is


def frontier(points: Iterable[Point]) -> list[Point]:
    """Those that no other one beats or equals in both, by bits."""
    best: list[Point] = []
    for bits, value in sorted(points, key=lambda point: (point[0], -point[1])):
        if not best or value > best[-1][1]:
            best.append((bits, value))
    return best


def at_bits(known: Sequence[Point], bits: float) -> float | None:
    """The value of a frontier at so many bits, on the lines that join it; None beyond its ends."""
    if not known[0][0] <= bits <= known[-1][0]:
        return None
    return float(np.interp(bits, [point[0] for point in known], [point[1] for point in known]))


def compared(several: Sequence[Rows], formats: Sequence[NumberFormat], own: Sequence[NumberFormat]) -> list[Any]:
    """Of every format: bits per weight, dB, and dB more than those of `own` at as many bits.

    Means over the weights, each of which counts by its size: a byte is a byte wherever it is saved.
    """
    by_format: dict[str, list[tuple[float, ...]]] = {}
    for rows in several:
        usable = [form for form in formats if form.fits(rows)]
        points = {form.name: _point(form, rows) for form in usable}
        known = frontier(points[form.name] for form in own if form.name in points)
        for name, (bits, noise) in points.items():
            own_noise = at_bits(known, bits)
            more = np.nan if own_noise is None else noise - own_noise
            by_format.setdefault(name, []).append((rows.size, bits, noise, more))
    return [{"format": name, **_means(np.array(values))} for name, values in by_format.items()]


def _point(form: NumberFormat, rows: Rows) -> Point:
    stored = form.store(rows)
    return stored.bits / rows.size, decibels(rows, stored)


def _means(values: np.ndarray) -> dict[str, float | None]:
    size, bits, noise, more = values.T
    known = np.where(np.isfinite(more), size, 0)
    return {
        "bits": np.average(bits, weights=size),
        "dB": np.average(noise, weights=size),
        "more": np.average(np.nan_to_num(more), weights=known) if known.any() else None,
    }


def weights(network: FormatNetwork) -> list[Any]:
    """All formats of weights."""
    return compared([network.rows(weight) for weight in network.weights], (*PRODUCT, *BEYOND), PRODUCT)


def activations(network: FormatNetwork) -> list[Any]:
    """All formats of activations: of a tensor as a whole, or of blocks of its channels."""
    entries = []
    for form in ACTIVATIONS:
        noise, bits = [], []
        for values in network.activations():
            rows = Rows.of(values if form.is_blocked else values.reshape(1, -1))
            stored = form.store(rows)
            noise.append(decibels(rows, stored))
            bits.append(stored.bits / rows.size)
        entries.append({"format": form.name, "bits": np.mean(bits), "dB": np.mean(noise), "worst": min(noise)})
    return entries


def losses(network: FormatNetwork) -> list[Any]:
    """Of many layers in one format: the loss, and by what it is more than that of ptqc's formats at as many bits."""
    some = [weight for weight in network.weights if weight.size <= ROUNDED]
    some = some[:: -(-sum(weight.size for weight in some) // ROUNDED)]
    rows = [_whole(network, some, form) for form in (*PRODUCT, *WHOLE)]
    own = {form.name for form in PRODUCT}
    known = frontier((row["bits"], -np.log(row["loss"])) for row in rows if row["format"] in own)
    for row in rows:
        expected = at_bits(known, row["bits"])
        row["times"] = None if expected is None else row["loss"] * np.exp(expected)
    return rows


def _whole(network: FormatNetwork, some: Sequence[Weight], form: NumberFormat) -> dict[str, Any]:
    """Where a weight cannot have the format, it is in int8."""
    constants, bits = dict[str, np.ndarray](), 0.0
    for weight in some:
        rows = network.rows(weight)
        taken = form if form.fits(rows) else PRODUCT[6]
        constants[weight.name] = network.rounded(weight, taken)
        bits += taken.store(rows).bits
    loss = max(network.loss(constants), SMALLEST_LOSS)
    return {"format": form.name, "bits": bits / sum(weight.size for weight in some), "loss": loss}


def choices(network: FormatNetwork) -> list[Any]:
    """What an integer program takes; losses that are predicted of its plans, and measured. ptqc has float16, too."""
    options = [option for weight in network.weights for option in _options(network, weight)]
    size = sum(weight.size for weight in network.weights)
    even = {"float16", *(form.name for form in PRODUCT if isinstance(form.form, Integer))}
    own = even | {form.name for form in PRODUCT}
    offers = {
        "even": [option for option in options if option.state in even],
        "ptqc": [option for option in options if option.state in own],
        "all": options,
    }
    rows = []
    for budget, bits in BUDGETS.items():
        row: dict[str, Any] = {"budget": budget}
        for name, some in offers.items():
            answer = solve(JointChoice(tuple(some)), Goal(LOSS, {BITS: bits * size}))
            row |= {f"predicted {name}": answer.value, f"taken of {name}": _shares(network, answer.selection)}
            row[f"loss {name}"] = _true_loss(network, answer.selection)
        rows.append(row)
    return rows


def _options(network: FormatNetwork, weight: Weight) -> list[Option]:
    rows = network.rows(weight)
    stored = {form.name: form.store(rows) for form in (*PRODUCT, *BEYOND) if form.fits(rows)}
    errors = {name: 10 ** (-decibels(rows, each) / 10) for name, each in stored.items()}
    measured = [max(network.loss({weight.name: network.rounded(weight, form)}), SMALLEST_LOSS) for form in ANCHORS]
    predicted = partial(power_law, [errors[form.name] for form in ANCHORS], measured)
    return [
        Option(weight.name, name, {BITS: each.bits, LOSS: predicted(errors[name])}) for name, each in stored.items()
    ]


def power_law(errors: Sequence[float], measured: Sequence[float], error: float) -> float:
    """The loss at an error, by those at two others."""
    slope = np.clip(np.log(measured[1] / measured[0]) / np.log(errors[1] / errors[0]), *EXPONENTS)
    near = int(abs(np.log(error / errors[1])) <= abs(np.log(error / errors[0])))
    return float(measured[near] * (error / errors[near]) ** slope)


def _shares(network: FormatNetwork, selection: Mapping[str, Any]) -> str:
    """The part of all weights that each format has, in words."""
    sizes: dict[str, int] = {}
    for weight in network.weights:
        sizes[selection[weight.name]] = sizes.get(selection[weight.name], 0) + weight.size
    total = sum(sizes.values())
    return "; ".join(f"{name} {size / total:.0%}" for name, size in sorted(sizes.items(), key=lambda one: -one[1]))


def _true_loss(network: FormatNetwork, selection: Mapping[str, Any]) -> float:
    forms = {form.name: form for form in (*PRODUCT, *BEYOND)}
    return network.loss({w.name: network.rounded(w, forms[selection[w.name]]) for w in network.weights})


PARTS: dict[str, Callable[[FormatNetwork], list[Any]]] = {
    "weights": weights,
    "activations": activations,
    "losses": losses,
    "choices": choices,
}


def measure(name: str, parts: Sequence[str], samples: int) -> dict[str, Any]:
    """Some parts of a task; runs in a child."""
    with opened(chosen(name)[0], samples) as network:
        return {part: PARTS[part](network) for part in parts}


def table(part: str, networks: Mapping[str, Mapping[str, Any]], show: Mapping[str, tuple[str, Any]]) -> str:
    """Formats below each other, networks side by side. show: heading and form of each figure of a format."""
    rows: dict[str, dict[str, Any]] = {}
    for task, parts in networks.items():
        for entry in parts[part]:
            row = rows.setdefault(entry["format"], {"format": entry["format"], "every bits": []})
            row["every bits"].append(entry["bits"])
            row |= {f"{task} {key}": entry[key] for key in show}
    for row in rows.values():
        row["bits"] = np.mean(row["every bits"])
    columns = [Column("format", "format"), Column("bits", "bits", number(2))]
    for task in networks:
        columns += [
            Column(f"{task} {heading}".rstrip(), f"{task} {key}", form) for key, (heading, form) in show.items()
        ]
    return harness.markdown(list(rows.values()), columns)


SHOWN: dict[str, dict[str, tuple[str, Any]]] = {
    "weights": {"dB": ("dB", number(1)), "more": ("more", number(1, sign=True))},
    "activations": {"dB": ("dB", number(1)), "worst": ("worst", number(1))},
    "losses": {"loss": ("loss", "{:.2g}".format), "times": ("times", number(2))},
}
CHOSEN = (
    Column("task", "task"),
    Column("bytes", "budget"),
    *(
        Column(f"{offer}, {heading}", f"{key} {name}", "{:.3g}".format)
        for name, offer in (("even", "even grids"), ("ptqc", "ptqc's"), ("all", "all"))
        for heading, key in (("predicted", "predicted"), ("measured", "loss"))
    ),
    Column("taken of all", "taken of all"),
)


def main() -> None:
    parser = harness.command_line(__doc__)
    parser.add_argument("--tasks", default=TASKS, help="comma-separated")
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated")
    parser.add_argument("--samples", type=int, default=32, help="calibration samples")
    arguments = parser.parse_args()
    parts, facts, networks, rows = arguments.parts.split(","), harness.machine(), dict[str, Any](), list[Any]()
    for task in chosen(arguments.tasks):
        outcome = harness.in_child(measure, task.name, parts, arguments.samples)
        if outcome.value is None:
            harness.say(f"{task.name}: {outcome.error}")
            continue
        networks[task.name] = outcome.value
        rows += [{"task": task.name, "part": part, **row} for part in parts for row in outcome.value[part]]
        harness.write_results(arguments.out, rows, facts)
    print(harness.heading(facts))
    for part in parts:
        print(f"\n## {part}\n")
        print(
            table(part, networks, SHOWN[part])
            if part in SHOWN
            else harness.markdown([row for row in rows if row["part"] == part], CHOSEN)
        )


if __name__ == "__main__":
    main()
