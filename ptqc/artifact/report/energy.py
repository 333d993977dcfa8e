"""Energy of a run, as bit flips in hardware that multiplies the plan's codes at their own widths.

A model of ASICs and microcontrollers: nothing is measured, and it says nothing of CPUs. It is that of PANN (Spingarn
Eliezer et al. 2022, arXiv 2202.02783): of one multiply-accumulate of b_w and b_x bits, with an accumulator of B = 32
bits,

    multiplier   ½ max(b_w, b_x)² + ½ (b_w + b_x)
    accumulator  signed: ½ B + (b_w + b_x);  unsigned: 3/2 (b_w + b_x)

Where the widths are equal these are ½ b² + 4 b (unsigned) and ½ b² + 3 b + ½ B (signed); that the wider operand decides
the multiplier elsewhere is an assumption. Unsigned arithmetic sums positive and negative weights apart, which is exact
as activations are codes that are not negative. The model has no figure for products of real numbers, so layers in float
are not counted.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ptqc.formats import Format
from ptqc.utils.text import magnitude, percent

Document = Mapping[str, Any]

ACCUMULATOR = 32
# Of the codes that integer kernels read, and of the weights that others are compared with.
ACTIVATION = INT8 = 8
WHOSE = "PANN's model of energy in ASICs and microcontrollers, not measured, and not of this CPU"


def bit_flips(weight: int, activation: int, *, signed: bool) -> float:
    """Of one multiply-accumulate with operands of these bits."""
    together = weight + activation
    multiplier = 0.5 * max(weight, activation) ** 2 + 0.5 * together
    return multiplier + (0.5 * ACCUMULATOR + together if signed else 1.5 * together)


@dataclass(frozen=True)
class LayerEnergy:
    """A layer: multiply-accumulates of one sample, and the bits of the codes of its weight; None in float."""

    layer: str
    macs: int
    bits: int | None

    def flips(self, *, signed: bool = True) -> float | None:
        """Bit flips of one sample; None in float, or where its multiply-accumulates are not known."""
        if self.bits is None or not self.macs:
            return None
        return self.macs * bit_flips(self.bits, ACTIVATION, signed=signed)


@dataclass(frozen=True)
class Energy:
    """All layers, by name."""

    layers: Mapping[str, LayerEnergy]

    @classmethod
    def of(cls, plan: Document, sensitivity: Document) -> "Energy":
        """From the documents of an artifact, of any version."""
        return cls({layer.layer: layer for layer in _layers(plan, sensitivity)})

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the layers that are counted."""
        return sum(layer.macs for layer in self.layers.values() if layer.bits is not None)

    @property
    def float_macs(self) -> int:
        """Multiply-accumulates of the layers that are not."""
        return sum(layer.macs for layer in self.layers.values() if layer.bits is None)

    def of_layers(self, names: Iterable[str]) -> float | None:
        """Bit flips of these layers with signed arithmetic; None where none of them is counted."""
        result = [flips for name in names if (flips := self.layers[name].flips()) is not None]
        return sum(result) if result else None

    def flips(self, *, signed: bool = True) -> float:
        """Bit flips of one sample in all layers that are counted."""
        return sum(layer.flips(signed=signed) or 0.0 for layer in self.layers.values())

    def of_int8(self, *, signed: bool = True) -> float:
        """The same as a share of what 8-bit weights in these layers take. Asks for layers that are counted."""
        return self.flips(signed=signed) / (self.macs * bit_flips(INT8, ACTIVATION, signed=signed))

    def to_json(self) -> dict[str, Any] | None:
        """The totals for the manifest; None where no layer is counted."""
        if not self.macs:
            return None
        result = {
            name: {"bit_flips": self.flips(signed=signed), "of_int8": self.of_int8(signed=signed)}
            for name, signed in (("signed", True), ("unsigned", False))
        }
        return {"model": "PANN", "macs": self.macs, "float_macs": self.float_macs, **result}

    def in_words(self) -> str:
        """The totals in one sentence."""
        if not self.macs:
            return "bit flips: not known, as no layer with known multiply-accumulates computes on integers"
        shares = [percent(self.of_int8(signed=signed)) for signed in (True, False)]
        flips = [magnitude(self.flips(signed=signed)).strip() for signed in (True, False)]
        message = (
            f"{flips[0]} with signed arithmetic, {flips[1]} unsigned: {shares[0]} and {shares[1]} of int8 everywhere"
        )
        if self.float_macs:
            share = self.float_macs / (self.macs + self.float_macs)
            message += f"; layers in float, {percent(share)} of the MACs, not counted"
        return f"bit flips of a sample: {message} ({WHOSE})"


def _layers(plan: Document, sensitivity: Document) -> Iterator[LayerEnergy]:
    # Artifacts of early versions lack the multiply-accumulates.
    macs = {entry["weight"]: entry.get("layers", {}) for entry in sensitivity["weights"]}
    for entry in plan["weights"]:
        bits = Format.parse(entry["format"]).code_bits
        for layer, compute in entry["layers"].items():
            yield LayerEnergy(layer, macs[entry["weight"]].get(layer, 0), bits if compute == "integer" else None)
