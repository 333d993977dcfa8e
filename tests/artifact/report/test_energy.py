"""Bit flips of a multiply-accumulate: a table of the model, a simulated data path, and what is told of an artifact."""

from typing import Any

import numpy as np
import pytest

from ptqc.artifact.report.energy import ACCUMULATOR, Energy, bit_flips

# After Spingarn Eliezer et al. 2022: of operands of b bits, unsigned, and signed with an accumulator of 32 bits.
TABLED = {2: (10, 24), 3: (16.5, 29.5), 4: (24, 36), 5: (32.5, 43.5), 6: (42, 52), 7: (52.5, 61.5), 8: (64, 72)}


@pytest.mark.parametrize("bits", TABLED)
def test_the_table(bits: int) -> None:
    result = tuple(bit_flips(bits, bits, signed=signed) for signed in (False, True))
    assert result == TABLED[bits]


def flipped(words: np.ndarray, bits: int) -> float:
    """Mean number of bits in which a word of a register differs from the one before."""
    changed = (words[1:] ^ words[:-1]) & ((1 << bits) - 1)
    return float(np.bitwise_count(changed).mean())


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize(("weight", "activation"), [(8, 8), (7, 8), (4, 8)])
def test_a_simulated_data_path(weight: int, activation: int, *, signed: bool) -> None:
    """All registers of a multiply-accumulate unit with random operands; the inside of its multiplier is the paper's."""
    rng = np.random.default_rng(0)
    low, high = (-1 / 2, 1 / 2) if signed else (0, 1)
    w, x = (rng.integers(int(low * 2**b), int(high * 2**b), 50_000) for b in (weight, activation))
    products = w * x
    sums = np.cumsum(products)
    simulated = flipped(w, weight) + flipped(x, activation)
    # Sums leave the adder, and are then kept in the accumulator.
    simulated += flipped(products, ACCUMULATOR) + 2 * flipped(sums, ACCUMULATOR)
    inside = 0.5 * max(weight, activation) ** 2
    assert simulated == pytest.approx(bit_flips(weight, activation, signed=signed) - inside, rel=0.1)


def documents(*layers: tuple[str, str, int]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Plan and sensitivities of layers given as format, compute and multiply-accumulates."""
    analysis = [
        {"weight": f"w{i}", "format": form, "layers": {f"l{i}": how}} for i, (form, how, _) in enumerate(layers)
    ]
    measured = [{"weight": f"w{i}", "layers": {f"l{i}": macs}} for i, (*_, macs) in enumerate(layers)]
    return {"weights": analysis}, {"weights": measured}


def test_totals() -> None:
    result = Energy.of(*documents(("int4", "integer", 1000), ("pairs5", "integer", 500), ("float32", "float", 700)))
    # Levels of a codebook are codes of 7 bits, however few bits choose among them.
    assert result.to_json() == {
        "model": "PANN",
        "macs": 1500,
        "float_macs": 700,
        "signed": {"bit_flips": 1000 * 66 + 500 * 70.5, "of_int8": pytest.approx(101_250 / 108_000)},
        "unsigned": {"bit_flips": 1000 * 56 + 500 * 62, "of_int8": pytest.approx(87_000 / 96_000)},
    }
    assert [result.of_layers([name]) for name in ("l0", "l2")] == [66_000, None]
    assert result.of_layers(["l0", "l1", "l2"]) == 101_250


def test_nothing_on_integers() -> None:
    result = Energy.of(*documents(("int4", "float", 1000)))
    assert result.to_json() is None
    assert result.in_words().startswith("bit flips: not known")


def test_int8_everywhere_is_what_it_is_compared_with() -> None:
    assert Energy.of(*documents(("int8", "integer", 1000))).of_int8() == 1
