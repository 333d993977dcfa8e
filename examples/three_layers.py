"""The worked example of docs/concepts/budgets.md: three layers, three widths, one limit on the bytes.

python examples/three_layers.py

Layers, losses and bytes are invented, so that every sum can be checked by hand. The solver is the one of a compile.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from ptqc.solver.integer_program import Condition, Event, Goal, JointChoice, Option, solve

BITS = (2, 4, 8)
# What a width adds to the file once: the function that unpacks it.
CODE = 150
LIMITS = (3_000, 5_400, 5_500, 6_500)

Plan = Mapping[str, int]


@dataclass(frozen=True)
class Layer:
    """weights: their number. loss: at the outputs if nothing is left of the weights, in nats."""

    name: str
    weights: int
    loss: float

    def bytes_in(self, bits: int) -> int:
        """Of the codes alone."""
        return self.weights * bits // 8

    def loss_in(self, bits: int) -> float:
        """One bit more halves the error, so it divides the loss by four."""
        return self.loss / 4**bits


LAYERS = (Layer("stem", 400, 0.3), Layer("middle", 8_000, 0.5), Layer("classifier", 1_600, 0.4))


def program() -> JointChoice:
    """One choice for each layer, and one event for each width: its code is in the file if any layer has it."""
    options = [
        Option(layer.name, bits, {"bytes": layer.bytes_in(bits), "loss": layer.loss_in(bits)})
        for layer in LAYERS
        for bits in BITS
    ]
    code = [
        Event(f"code of {bits} bits", tuple(Condition((layer.name, bits)) for layer in LAYERS), {"bytes": CODE}, False)
        for bits in BITS
    ]
    return JointChoice(tuple(options), tuple(code))


def best(limit: int) -> tuple[Plan, Mapping[str, float]]:
    """The plan of least loss within a limit, with its bytes and its loss."""
    answer = solve(program(), Goal("loss", {"bytes": limit}))
    return {layer.name: int(str(answer.selection[layer.name])) for layer in LAYERS}, answer.costs


def every_plan() -> Iterator[tuple[Plan, Mapping[str, float]]]:
    """All plans with their bytes and losses: there are 27."""
    for widths in product(BITS, repeat=len(LAYERS)):
        plan = {layer.name: bits for layer, bits in zip(LAYERS, widths, strict=True)}
        yield plan, program().costs(plan)


def table() -> str:
    """The options of each layer, and the answers, as the page shows them."""
    lines = ["| layer | weights | 2 bits | 4 bits | 8 bits |", "|---|---|---|---|---|"]
    for layer in LAYERS:
        cells = [f"{layer.bytes_in(bits):,} B, {layer.loss_in(bits):.2g} nat" for bits in BITS]
        lines.append(f"| {layer.name} | {layer.weights:,} | {' | '.join(cells)} |")
    lines += ["", "| limit | stem | middle | classifier | bytes | loss |", "|---|---|---|---|---|---|"]
    for limit in LIMITS:
        plan, costs = best(limit)
        widths = " | ".join(f"{plan[layer.name]} bits" for layer in LAYERS)
        lines.append(f"| {limit:,} B | {widths} | {costs['bytes']:,.0f} | {costs['loss']:.2g} nat |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
