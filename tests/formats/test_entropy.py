"""Entropy codes: their text against a decoder in plain Python, how short it is, and what a compile makes of them."""

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from compiling import compiled, proto, samples, weight
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import ptqc
from ptqc.errors import InternalError
from ptqc.formats import Codebook, Coded, Entropy, Integer, Trellis
from ptqc.formats.entropy import BITS, BY_SIZE, CLASS_BITS, CLASSES, MOST_FURTHER, PrefixCode
from ptqc.formats.levels import REACH
from ptqc.ir.layers import find_layers, find_weights
from ptqc.ir.nodes import initial
from ptqc.passes.quantize.solve_weights import formats_of, possible, suited

FORMS = [*map(Entropy, BITS)]
ONE = np.ones((1, 1), np.float32)


def decibels(rows: np.ndarray, form: Coded) -> float:
    codes, scale = form.rounded(rows, 0)
    return float(10 * np.log10((rows**2).sum() / ((rows - form.decode(codes, scale, 0)) ** 2).sum()))


def bits_of(rows: np.ndarray, form: Entropy) -> float:
    """Stored bits of a weight, without scales."""
    *stored, _ = form.pack(*form.rounded(rows, 0))
    return 8 * sum(array.nbytes for array in stored if array is not BY_SIZE) / rows.size


def decoded(stored: list[np.ndarray], size: int) -> list[int]:
    """Codeword after codeword, as the text of `ptqc.formats.entropy` says it."""
    classes, further, widths, codes, _ = stored
    first = [0]
    for width in widths.ravel().tolist():
        first.append(first[-1] + 2**width)
    result = []
    for number, row in enumerate(further[:, 0].tolist()):
        bits = "".join(str(byte >> place & 1) for place in range(8) for byte in row)
        place = 0
        for byte in classes.tolist():
            index = byte >> (CLASS_BITS * number) & (CLASSES - 1)
            width = int(widths[index, 0])
            offset = int(bits[place : place + width] or "0", 2)
            place += width
            result.append(int(codes[first[index] + offset]))
        assert place + MOST_FURTHER <= len(bits), "the window of the last code is whole"
    return result[:size]


@settings(deadline=None)
@given(codes=hnp.arrays(np.int8, st.integers(0, 70), elements=st.integers(-REACH, REACH)))
def test_any_codes_come_back(codes: np.ndarray) -> None:
    assert decoded(Entropy(8).pack(codes, ONE), codes.size) == codes.tolist()


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("tails", [2.5, 30])
def test_weights_come_back(form: Entropy, tails: float) -> None:
    rows = np.random.default_rng(0).standard_t(tails, (31, 33)).astype(np.float32)
    codes, scale = form.rounded(rows, 0)
    assert decoded(form.pack(codes, scale), codes.size) == codes.ravel().tolist()


def test_codes_out_of_the_usual_order_have_a_list_of_their_own() -> None:
    values = np.random.default_rng(0).permutation(np.arange(-20, 20)).astype(np.int8)
    codes = np.repeat(values, 4000 - 100 * np.arange(40))
    code = PrefixCode.of(codes)
    assert code.codes is not BY_SIZE
    assert code.codes[:40].tolist() == values.tolist()
    assert PrefixCode.of(np.zeros(10, np.int8)).codes is BY_SIZE


def test_codes_beyond_reach_are_refused() -> None:
    with pytest.raises(InternalError, match="entropy4 is beyond 63"):
        Entropy(8).pack(np.array([-64], np.int8), ONE)


@pytest.mark.parametrize("seed", range(4))
def test_the_text_is_the_shortest(seed: int) -> None:
    """Of all ways in which classes may share out the codes, tried by recursion."""
    counts = np.sort(np.random.default_rng(seed).integers(0, 1000, 40))[::-1].tolist()
    values = np.arange(40) - 20

    @cache
    def least(first: int, classes: int) -> float:
        if first >= 40:
            return 0
        if not classes:
            return np.inf
        every = range(MOST_FURTHER + 1)
        return min(e * sum(counts[first : first + 2**e]) + least(first + 2**e, classes - 1) for e in every)

    code = PrefixCode.of(np.repeat(values, counts).astype(np.int8))
    rows = np.repeat(values, counts).astype(np.int8)[None]
    assert code.most_bits(rows) - MOST_FURTHER == least(0, CLASSES)


@pytest.mark.parametrize("form", FORMS[:-1], ids=str)
def test_normal_weights_take_the_bits_of_the_name(form: Entropy) -> None:
    rows = np.random.default_rng(0).standard_normal((64, 4096)).astype(np.float32)
    assert form.bits_per_weight - 0.02 < bits_of(rows, form) < form.bits_per_weight + 0.2
    # A quarter of a bit from the rate-distortion bound.
    assert decibels(rows, form) == pytest.approx(6.02 * (form.bits_per_weight - 0.254), abs=0.15)


def test_the_finest_has_the_codes_of_seven_bits_in_fewer() -> None:
    rows = np.random.default_rng(0).standard_normal((64, 576)).astype(np.float32)
    assert decibels(rows, FORMS[-1]) == pytest.approx(decibels(rows, Integer(7)), abs=0.1)
    assert bits_of(rows, FORMS[-1]) < 6.5


def test_heavy_tails_take_nothing_from_the_others() -> None:
    rows = np.random.default_rng(0).standard_t(4, (64, 4096)).astype(np.float32)
    assert bits_of(rows, Entropy(9)) < 4.6
    assert decibels(rows, Entropy(9)) > max(decibels(rows, Integer(5)) + 3, decibels(rows, Codebook(4)) + 4)


@pytest.mark.parametrize("shape", [(0,), (1,), (33, 5), (64, 64)])
def test_sizes_are_known_without_the_bits(shape: tuple[int, ...]) -> None:
    codes = np.random.default_rng(0).integers(-REACH, REACH + 1, shape).astype(np.int8)
    result, wanted = Entropy(8).sized(codes, ONE), Entropy(8).pack(codes, ONE)
    assert [(one.dtype, one.shape) for one in result] == [(one.dtype, one.shape) for one in wanted]
    if codes.size > 1:
        other = codes.copy()
        other.flat[-1] ^= 1
        assert not np.array_equal(Entropy(8).sized(other, ONE)[0], result[0])


def test_powers_of_two_as_scales_leave_the_rate() -> None:
    """Not the smaller one of two, whose error is always less."""
    rows = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    rows *= np.random.default_rng(1).uniform(1, 4, (64, 1)).astype(np.float32)
    codes, scale = Entropy(10).rounded(rows, 0, powers=True)
    *stored, _ = Entropy(10).pack(codes, scale)
    assert 8 * sum(array.nbytes for array in stored[:3]) / rows.size < 5.5


def test_rows_of_zeros_and_of_any_size_are_coded() -> None:
    rows = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    rows *= np.array([[0], [1e-15], [1], [1e15]], np.float32)
    codes, scale = Entropy(10).rounded(rows, 0)
    assert np.isfinite(scale).all()
    assert not codes[0].any()
    assert decibels(rows[3:], Entropy(10)) > 25


def test_rows_of_less_deviation_have_fewer_bits_and_less_noise() -> None:
    rows = np.random.default_rng(0).standard_normal((2, 4096)).astype(np.float32) * np.array([[1], [16]], np.float32)
    scale = Entropy(10).grid(rows, np.ones((1, 4096), np.float32)).scale
    assert scale[1] / scale[0] == pytest.approx(4, rel=0.05)


def test_the_sign_of_weights_is_kept_where_it_has_to_be() -> None:
    rows = np.abs(np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32))
    grid = Entropy(8).grid(rows, np.ones((1, 64), np.float32), keeps_sign=True)
    assert (grid.nearest(np.array([-3.0, 3.0], np.float32), None) >= 0).all()


@pytest.mark.parametrize(
    ("activations", "budget", "inline"),
    [
        ("integer", "22%", False),
        pytest.param("float", "23%", False, marks=pytest.mark.slow),
        pytest.param("integer", "25%", True, marks=pytest.mark.slow),
    ],
)
def test_a_compile_chooses_packs_and_verifies_it(tmp_path: Path, activations: str, budget: str, inline: bool) -> None:
    options = {"activations": activations, "formats": ("int", "entropy"), "bits": (3, 4, 5, 6, 7), "inline": inline}
    artifact = compiled(wide(), samples(48, 6, 6), tmp_path, budget, **options)
    chosen = {entry["format"] for entry in artifact.plan["weights"]}
    assert any(name.startswith("entropy") for name in chosen)
    assert any("z" in function.name for function in onnx.load(artifact.path).functions) != inline
    ptqc.verify(artifact.folder)


def wide() -> onnx.ModelProto:
    graph = """g (float[N,48,6,6] x) => (float[N,64,2,2] y) {
        a = Conv(x, w1)
        r = Relu(a)
        y = Conv(r, w2)
    }"""
    return proto(graph, w1=weight(64, 48, 3, 3), w2=weight(64, 64, 3, 3, seed=1))


def test_it_takes_the_place_of_codes_of_fixed_length_where_there_are_enough_weights() -> None:
    model = ir.from_proto(wide())
    weights = find_weights(model, find_layers(model))
    forms = formats_of(range(2, 9), weights, ("int", "entropy", "tcq", "codebook", "pairs"))
    for one in weights:
        tried = {str(form) for form in suited(one, initial(model, one.name), forms)}
        assert tried.isdisjoint({"int5", "int6", "int7", "tcq5", "codebook4", "pairs8"})
        assert {"int4", "int8", "tcq4", "entropy7"} <= tried


def test_small_weights_do_not_have_it() -> None:
    assert not Entropy.suits(np.zeros((8, 64)))
    assert Entropy.suits(np.zeros((64, 64)))
    assert Entropy.superseded(np.zeros((64, 64)), FORMS) == []
    assert Trellis(10) in Entropy.superseded(np.zeros((128, 128)), FORMS)


@pytest.mark.parametrize(("numbers", "suits"), [(2**10, False), (2**20, True), (2**30, False)])
def test_models_of_a_middle_size_have_it_unasked(numbers: int, suits: bool) -> None:
    assert Entropy.suits_model(numbers) == suits


def test_large_tables_of_which_rows_are_picked_stay_packed_instead() -> None:
    """Whole, they would take four bytes a number in memory."""
    graph = "g (int64[N,T] i) => (float[N,T,16] y) { e = Gather(embedding, i) y = MatMul(e, w) }"
    for rows, has_it in ((4096, False), (256, True)):
        model = ir.from_proto(proto(graph, embedding=weight(rows, 64), w=weight(64, 16, seed=1)))
        table = next(one for one in find_weights(model, find_layers(model)) if one.name == "embedding")
        assert (Entropy(8) in possible(table, FORMS)) == has_it
