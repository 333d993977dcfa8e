from pathlib import Path

import numpy as np
import pytest
from compiling import compiled, proto, samples, weight
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import ptqc
from ptqc.errors import InternalError
from ptqc.formats import Codebook, Integer, Sparse, SparseCodebook, TwoOfFour, planes
from ptqc.formats.sparse import Masked

GRIDS = [*Sparse.members()]
FORMS: list[Masked] = [*GRIDS, *SparseCodebook.members()]
FOURS = [*TwoOfFour.members()]

NETWORK = """g (float[N,16] x) => (float[N,6] y) {
    h = Gemm(x, w1, b1)
    r = Relu(h)
    k = Gemm<transB=1>(r, w2, b2)
    s = Relu(k)
    y = Gemm(s, w3, b3)
}"""


def pruned(weights: np.ndarray, share: float = 0.5) -> np.ndarray:
    """The smallest of them become zeros."""
    return np.where(np.abs(weights) > np.quantile(np.abs(weights), share), weights, np.float32(0))


def two_of_four(weights: np.ndarray) -> np.ndarray:
    """The two smallest of each four in a row become zeros."""
    fours = weights.reshape(-1, 4)
    order = np.argsort(np.abs(fours), axis=1)
    result = fours.copy()
    np.put_along_axis(result, order[:, :2], 0, axis=1)
    return result.reshape(weights.shape)


def decibels(rows: np.ndarray, result: np.ndarray) -> float:
    return float(10 * np.log10((rows**2).sum() / ((rows - result) ** 2).sum()))


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_zeros_stay_and_nothing_else_becomes_one(form: Masked) -> None:
    rows = pruned(weight(24, 200))
    codes, scale = form.rounded(rows, 0)
    np.testing.assert_array_equal(codes == 0, rows == 0)
    np.testing.assert_array_equal(form.decode(codes, scale, 0) == 0, rows == 0)
    assert len(np.unique(codes[codes != 0])) <= 2**form.bits
    assert np.abs(codes.astype(int)).max() < 2 ** (form.code_bits - 1) + 1


@pytest.mark.parametrize("form", GRIDS, ids=str)
def test_the_grid(form: Sparse) -> None:
    levels = form.levels(np.empty(0))
    assert len(levels) == 2**form.bits
    assert 0 not in levels
    np.testing.assert_array_equal(levels, -levels[::-1])
    index, listed = form.index_of(levels.astype(np.int8))
    assert index.tolist() == list(range(2**form.bits))
    assert listed == []


@given(
    form=st.sampled_from(GRIDS),
    ratio=hnp.arrays(np.float32, 30, elements=st.floats(-300, 300, width=32).filter(lambda x: x != 0)),
)
def test_nearest_is_nearest(form: Sparse, ratio: np.ndarray) -> None:
    distance = np.abs(ratio[:, None].astype(np.float64) - form.levels(np.empty(0)))
    result = form.nearest(ratio)
    assert np.isin(result, form.levels(np.empty(0))).all()
    np.testing.assert_array_equal(np.abs(ratio.astype(np.float64) - result), distance.min(1))


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("share", [0.4, 0.9])
def test_its_bytes_follow_from_the_zeros(form: Masked, share: float) -> None:
    rows = pruned(weight(16, 160), share)
    kept = int((rows != 0).sum())
    packed = form.pack(*form.rounded(rows, 0))
    stored = sum(array.nbytes for array in packed[: len(form.inputs) - (2 if "v" in form.inputs else 1)])
    assert len(packed) == len(form.inputs)
    assert stored == planes.packed_bytes(rows.size, 1) + planes.packed_bytes(kept, form.bits)
    assert form.least_bits(rows) * rows.size <= 8 * stored < form.least_bits(rows) * rows.size + 64


@pytest.mark.parametrize("bits", range(2, 5))
def test_at_fewer_bytes_it_is_closer_to_pruned_weights_than_grids_are(bits: int) -> None:
    rows = pruned(weight(64, 256))
    forms = (SparseCodebook(bits), Sparse(bits), Codebook(bits), Integer(bits))
    assert forms[0].least_bits(rows) <= bits + 0.01
    codebook, grid, dense, even = (decibels(rows, form.decode(*form.rounded(rows, 0), 0)) for form in forms)
    assert codebook > dense + 2
    assert codebook > grid > even


@pytest.mark.parametrize(("share", "suits"), [(0.0, False), (0.25, False), (0.35, True), (1.0, True)])
def test_it_is_for_weights_with_zeros(share: float, suits: bool) -> None:
    assert all(form.suits(pruned(weight(10, 100), share)) is suits for form in FORMS)


def test_a_weight_of_zeros() -> None:
    for form in FORMS:
        codes, scale = form.rounded(np.zeros((4, 6), np.float32), 0)
        assert not form.decode(codes, scale, 0).any()
        assert all(array.size for array in form.pack(codes, scale))
        assert form.levels(codes).size


@pytest.mark.parametrize("form", FOURS, ids=str)
def test_patterns_of_four_take_less_than_a_bit_for_each_weight(form: TwoOfFour) -> None:
    rows = two_of_four(weight(16, 96))
    assert form.suits(rows)
    codes, scale = form.rounded(rows, 0)
    np.testing.assert_array_equal(codes == 0, rows == 0)
    patterns, codes_of_pairs, _ = (
        sum(array.nbytes for array, name in zip(form.pack(codes, scale), form.inputs, strict=True) if name[0] == letter)
        for letter in "mps"
    )
    assert (patterns, codes_of_pairs) == (16 * 24 * 3 // 8, 16 * 48 * form.bits // 8)
    assert form.least_bits(rows) == 8 * (patterns + codes_of_pairs) / rows.size


def test_patterns_of_four_are_for_pairs_of_four() -> None:
    rows = two_of_four(weight(16, 96))
    np.testing.assert_array_equal(TwoOfFour(3).mask(rows), rows != 0)
    rows[3, 8:12] = [1, 0, 0, 0]
    assert not TwoOfFour(3).suits(rows)
    assert TwoOfFour(3).mask(rows) is None
    assert not TwoOfFour(3).fits(6, 8)
    with pytest.raises(InternalError, match="four neighbours have not two codes"):
        TwoOfFour(3).pack(rows.astype(np.int8), np.ones(16, np.float32))


@pytest.mark.parametrize("form", FOURS, ids=str)
def test_of_dense_weights_the_largest_two_of_each_four_are_kept(form: TwoOfFour) -> None:
    rows = weight(16, 96)
    codes, scale = form.rounded(rows, 0)
    np.testing.assert_array_equal(codes != 0, two_of_four(rows) != 0)
    assert form.pack(codes, scale)[0].size


@pytest.mark.slow
@pytest.mark.parametrize("activations", ["integer", "float"])
def test_a_dense_network_is_pruned_where_that_is_asked_for(activations: str, tmp_path: Path) -> None:
    shapes = {"w1": (16, 128), "w2": (256, 128), "w3": (256, 6)}
    weights = {name: weight(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    biases = {"b1": weight(128, seed=5), "b2": weight(256, seed=6), "b3": weight(6, seed=7)}
    model, feeds = proto(NETWORK, **weights, **biases), samples(16, count=32)
    artifact = compiled(model, feeds, tmp_path, None, activations=activations, sparsity="2:4", bits=(2, 4))
    stored = {weight["weight"]: weight["format"] for weight in artifact.plan["weights"]}
    assert [stored[name][:-1] for name in shapes] == ["twooffour"] * 3
    ptqc.verify(artifact.folder)
    smaller = ptqc.resolve(artifact.folder, budget="11%", output=tmp_path / "smaller", cache=tmp_path / "cache")
    assert smaller.path.stat().st_size < artifact.path.stat().st_size
    assert all(weight["format"].startswith("twooffour") for weight in smaller.plan["weights"])


@pytest.mark.long
@pytest.mark.parametrize("activations", ["integer", pytest.param("float", marks=pytest.mark.slow)])
def test_a_pruned_network_is_compiled_with_its_zeros(activations: str, tmp_path: Path) -> None:
    shapes = {"w1": (16, 128), "w2": (256, 128), "w3": (256, 6)}
    weights = {name: pruned(weight(*shape, seed=i)) for i, (name, shape) in enumerate(shapes.items())}
    biases = {"b1": weight(128, seed=5), "b2": weight(256, seed=6), "b3": weight(6, seed=7)}
    artifact = compiled(
        proto(NETWORK, **weights, **biases), samples(16, count=32), tmp_path, "12%", activations=activations
    )
    stored = {weight["weight"]: weight["format"] for weight in artifact.plan["weights"]}
    assert stored["w2"].startswith("sparse")
    ptqc.verify(artifact.folder)
    again = ptqc.resolve(artifact.folder, budget="12%", output=tmp_path / "again", cache=tmp_path / "cache")
    assert again.path.read_bytes() == artifact.path.read_bytes()
