"""Trellis codes: their search and their bits against plain Python, and what a compile makes of them."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from compiling import compiled, proto, residual, samples, weight
from mostly_slow import mostly_slow

import ptqc
from ptqc.errors import InternalError, UsageError
from ptqc.formats import Codebook, Integer, Scaled, VectorCodebook
from ptqc.formats.trellis import BITS, DEVIATION, STATE_BITS, TABLE, RowTrellis, Trellis
from ptqc.formats.trellis_steps import compiled as compiled_by_numba
from ptqc.ir.layers import Weight, find_layers, find_weights
from ptqc.ir.nodes import initial
from ptqc.passes.quantize.solve_weights import formats_of, possible, suited

FORMS = [*map(Trellis, BITS)]
STATES = 2**STATE_BITS
ONLY = ("int", "tcq")


def decibels(rows: np.ndarray, result: np.ndarray) -> float:
    return float(10 * np.log10((rows**2).sum() / ((rows - result) ** 2).sum()))


def least_cost(x: np.ndarray, weights: np.ndarray, form: Trellis) -> float:
    """Of all closed paths, by a search from every memory."""
    states = np.arange(STATES)
    costs = []
    for memory in range(STATES >> form.steps[0]):
        known = np.full(STATES, np.inf)
        known[memory] = 0
        for t, (value, cost) in enumerate(zip(x, weights, strict=True)):
            following = form.steps[(t + 1) % len(x) % 2]
            each = known[states >> form.steps[t % 2]] + cost * (value - TABLE) ** 2
            known = np.full(STATES, np.inf)
            np.minimum.at(known, states & ((STATES >> following) - 1), each)
        costs.append(known[memory])
    return float(min(costs))


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("size", mostly_slow([16, 34], 34))
def test_paths_are_nearly_the_best_closed_ones(form: Trellis, size: int) -> None:
    rng = np.random.default_rng(size)
    x = DEVIATION[form.bits] * rng.standard_normal((24, size))
    weights = rng.uniform(0.1, 1, (24, size))
    codes = form.nearest(x, weights / weights.max(1, keepdims=True))
    result = (weights * (x - codes) ** 2).sum(1)
    best = np.array([least_cost(*one, form) for one in zip(x, weights, strict=True)])
    assert (result >= best * (1 - 1e-4)).all()
    assert result.sum() <= (1.1 if size < 20 else 1.02) * best.sum()


@pytest.mark.parametrize("descends", [False, True])
def test_columns_pass_on_what_they_were_moved_by(descends: bool) -> None:
    rng, form, groups, rows = np.random.default_rng(5), Trellis(6), 3, 16
    values, before = (12 * rng.standard_normal((7, groups * rows)).astype(np.float32) for _ in range(2))
    costs = rng.uniform(0.1, 1, values.shape).astype(np.float32)
    coupling = 0.1 * rng.standard_normal((groups, 7, 7)).astype(np.float32)
    codes, moves = form.rounded_in_turn(values, before if descends else None, costs, coupling)
    kept, work = 0, values.copy()
    for j in range(7):
        ratio = work[j] + before[j] if descends else work[j]
        best = form.nearest(ratio[None], costs[j : j + 1])[0]
        if descends and costs[j] @ (best - ratio) ** 2 >= costs[j] @ (before[j] - ratio) ** 2:
            best, kept = before[j], kept + 1
        move = best - (before[j] if descends else ratio)
        np.testing.assert_array_equal(codes[j], best)
        np.testing.assert_allclose(moves[j], move, rtol=1e-4, atol=1e-4)
        for g in range(groups):
            part = slice(g * rows, (g + 1) * rows)
            work[j + 1 :, part] += coupling[g, j, j + 1 :, None] * move[part]
    # The best path is far better than codes at random, but not than itself.
    assert kept == 0
    if descends:
        again, still = form.rounded_in_turn(np.zeros_like(codes), codes, costs, coupling)
        np.testing.assert_array_equal(again, codes)
        assert not still.any()


def from_bits(stream: np.ndarray, form: Trellis, columns: int, size: int) -> np.ndarray:
    """The codes (size, columns) that a stream stands for: each output's state is the last eight bits up to its own."""
    digits = "".join(str(byte >> place & 1) for place in range(8) for byte in stream.ravel().tolist())
    ends = np.cumsum([form.steps[t % 2] for t in range(size)])
    result = np.empty((size, columns), int)
    for i in range(columns):
        column = "".join(digits[row * columns + i] for row in range(ends[-1]))
        path = column[-STATE_BITS:] + column
        for t in range(size):
            result[t, i] = TABLE[int(path[ends[t] : ends[t] + STATE_BITS], 2)]
    return result


SHAPES = ((16, 5), (18, 3), (17, 3), (40, 1), (40, 2, 3, 3))


@pytest.mark.parametrize(
    ("form", "shape"), [(form, shape) for form in FORMS for shape in SHAPES if form.fits(0, shape[0])]
)
def test_the_bits_are_those_of_the_path(form: Trellis, shape: tuple[int, ...]) -> None:
    codes, scale = form.rounded(weight(*shape), 0)
    codes.setflags(write=False)
    stream, table, _powers, stored = form.pack(codes, scale)
    columns = int(np.prod(shape[1:]))
    assert stream.size == -(-columns * shape[0] * form.bits // 16)
    assert table.tolist() == [TABLE.tolist()]
    np.testing.assert_array_equal(stored, scale)
    np.testing.assert_array_equal(from_bits(stream, form, columns, shape[0]), codes.reshape(shape[0], -1))


ROW_FORMS = [*map(RowTrellis, BITS)]


@pytest.mark.parametrize("form", ROW_FORMS, ids=str)
@pytest.mark.parametrize(("shape", "axis"), [((5, 16), 0), ((3, 48), 0), ((2, 7, 32), 1)])
def test_the_bits_of_each_row_are_those_of_its_path(form: RowTrellis, shape: tuple[int, ...], axis: int) -> None:
    codes, scale = form.rounded(weight(*shape), axis)
    stream, table, _powers, stored = form.pack(codes, scale)
    width = shape[-1]
    assert stream.shape == (codes.size // width, 1, width * form.bits // 16)
    assert table.tolist() == [TABLE.tolist()]
    assert scale.shape == (shape[axis],)
    np.testing.assert_array_equal(stored, scale)
    for row, wanted in zip(stream, codes.reshape(-1, width), strict=True):
        np.testing.assert_array_equal(from_bits(row, form, 1, width)[:, 0], wanted)


@pytest.mark.parametrize("form", [*FORMS, *ROW_FORMS], ids=str)
@pytest.mark.parametrize("shape", [(32, 48), (16, 3, 5, 16)])
def test_sizes_are_known_without_a_search(form: Trellis, shape: tuple[int, ...]) -> None:
    codes, scale = form.rounded(weight(*shape), 0)
    result, wanted = form.sized(codes, scale), form.pack(codes, scale)
    assert [(one.dtype, one.shape) for one in result] == [(one.dtype, one.shape) for one in wanted]


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_rows_lose_less_than_in_grids_and_codebooks_of_as_many_bits(bits: int) -> None:
    rows = weight(200, 384) * np.geomspace(0.1, 1, 200, dtype=np.float32)[:, None]

    def found(form: Scaled) -> float:
        return decibels(rows, form.decode(*form.rounded(rows, 0), 0))

    assert found(RowTrellis(bits)) > max(found(Integer(bits // 2)), found(Codebook(bits // 2))) + 1.2


def test_rows_of_any_size_are_coded_and_with_powers_of_two_as_scales() -> None:
    rows = weight(8, 32) * np.float32(10.0) ** np.arange(-34, -18, 2, dtype=np.float32)[:, None]
    rows[3] = 0
    codes, scale = RowTrellis(8).rounded(rows, 0)
    assert (scale > 0).all()
    assert decibels(rows[-1:], (codes * scale[:, None])[-1:]) > 18
    assert (np.frexp(RowTrellis(8).rounded(rows, 0, powers=True)[1])[0] == 0.5).all()


def table(shape: tuple[int, ...] = (64, 48), axis: int = 0) -> Weight:
    return Weight("table", shape, axis, ())


def names_suited(of: Weight) -> set[str]:
    forms = formats_of((2, 3, 4, 5), [of], ("int", "codebook", "tcq"))
    assert set(suited(of, weight(*of.shape), forms)) <= set(possible(of, forms))
    return {str(form) for form in suited(of, weight(*of.shape), forms)}


def test_tables_have_it_where_rows_take_whole_bytes() -> None:
    integers = {"int2", "int3", "int4", "int5"}
    every = {str(form) for form in ROW_FORMS}
    assert names_suited(table()) == integers | every
    assert names_suited(table((2, 64, 48), 1)) == integers | every
    assert names_suited(table((64, 24))) == integers | {"tcq2row", "tcq3row", "tcq4row", "tcq5row"}
    without = integers | {"codebook2", "codebook3", "codebook4"}
    assert names_suited(table((64, 8))) == names_suited(table((512,))) == without


def test_tables_keep_the_sign_of_their_numbers() -> None:
    forms = suited(table(), np.abs(weight(64, 48)), [Integer(4), Codebook(2), RowTrellis(4)])
    assert forms == [Integer(4), Codebook(2)]


def test_codes_that_are_no_path_are_refused() -> None:
    codes, scale = Trellis(4).rounded(weight(32, 4), 0)
    codes[5, 1] += 1
    with pytest.raises(InternalError, match="no path of tcq2"):
        Trellis(4).pack(codes, scale)


@pytest.mark.parametrize("bits", [3, 4, 5, 6, 7, 8])
def test_it_loses_less_than_grids_and_pairs_of_as_many_bits(bits: int) -> None:
    """bits: of two weights."""
    rows = np.random.default_rng(bits).standard_normal((64, 400)).astype(np.float32)

    def found(form: Scaled) -> float:
        return decibels(rows, form.decode(*form.rounded(rows, 0), 0))

    mine = found(Trellis(bits))
    if bits % 2 == 0:
        assert mine > found(Integer(bits // 2)) + 1.2
    assert mine > found(VectorCodebook(bits)) + 0.8


def test_rows_of_zeros_and_of_any_size_are_coded() -> None:
    rows = weight(16, 30) * np.float32(10.0) ** np.arange(-20, 12, 2, dtype=np.float32)[:, None]
    rows[3] = 0
    codes, scale = Trellis(8).rounded(rows, 0)
    assert np.isfinite(scale).all()
    assert (scale > 0).all()
    large = rows[-4:]
    assert decibels(large, (codes * scale[:, None])[-4:]) > 10


def test_small_numbers_lose_no_more_than_large_ones() -> None:
    rows = weight(32, 40)
    codes, scale = Trellis(6).rounded(rows, 0)
    tiny, least = Trellis(6).rounded(np.ldexp(rows, -80), 0)
    np.testing.assert_array_equal(tiny, codes)
    np.testing.assert_allclose(np.ldexp(least, 80), scale, rtol=1e-6)


@pytest.mark.slow
def test_gradient_steps_leave_the_codes(tmp_path: Path) -> None:
    options: dict[str, Any] = {"formats": ONLY, "bits": (2, 3, 8), "activations": "integer", "pipeline": "advanced"}
    artifact = compiled(residual(), samples(3, 8, 8), tmp_path, "14%", **options)
    assert any(name.startswith("tcq") for name in formats_in(artifact))
    ptqc.verify(artifact.folder)


def formats_in(artifact: ptqc.Artifact) -> set[str]:
    return {entry["format"] for entry in artifact.plan["weights"]}


@pytest.mark.parametrize(
    ("activations", "budget", "bits"),
    [("integer", "14%", (2, 3, 8)), pytest.param("float", "16%", (2, 3, 4, 5, 6, 7, 8), marks=pytest.mark.slow)],
)
def test_a_compile_chooses_packs_and_verifies_it(
    tmp_path: Path, activations: str, budget: str, bits: tuple[int, ...]
) -> None:
    options: dict[str, Any] = {"activations": activations, "formats": ONLY, "bits": bits}
    artifact = compiled(residual(), samples(3, 8, 8), tmp_path, budget, **options)
    assert any(name.startswith("tcq") for name in formats_in(artifact))
    functions = [function.name for function in ptqc_functions(artifact.path)]
    assert sum("y" in name for name in functions) == 1  # one for all widths
    ptqc.verify(artifact.folder)
    again = ptqc.resolve(artifact.folder, budget="13.5%", output=tmp_path / "again", cache=tmp_path / "cache")
    once_more = ptqc.resolve(artifact.folder, budget="13.5%", output=tmp_path / "more", cache=tmp_path / "cache")
    assert again.path.read_bytes() == once_more.path.read_bytes()


def ptqc_functions(path: Path) -> list[onnx.FunctionProto]:
    return list(onnx.load(path).functions)


@pytest.mark.slow
def test_groups_are_one_sequence(tmp_path: Path) -> None:
    """Of a depthwise layer a column is a tap of all channels."""
    graph = """g (float[N,128,8,8] x) => (float[N,128,4,4] y) {
        a = Conv<group=128>(x, w1)
        ar = Relu(a)
        y = Conv<group=2>(ar, w2)
    }"""
    model = proto(graph, w1=weight(128, 1, 3, 3), w2=weight(128, 64, 3, 3, seed=1))
    artifact = compiled(model, samples(128, 8, 8), tmp_path, "7.6%", formats=("tcq",))
    assert {entry["format"][:3] for entry in artifact.plan["weights"]} == {"tcq"}
    ptqc.verify(artifact.folder)


@pytest.mark.slow
def test_layers_with_too_few_outputs_have_other_formats(tmp_path: Path) -> None:
    artifact = compiled(residual(), samples(3, 8, 8), tmp_path, "30%", formats=ONLY)
    last = next(entry for entry in artifact.plan["weights"] if entry["weight"] == "w4")
    assert not last["format"].startswith("tcq")


SENTENCES = """g (int64[N,T] i) => (float[N,T,16] y) {
    e = Gather(embedding, i)
    a = MatMul(e, w1)
    r = Relu(a)
    y = MatMul(r, w2)
}"""


@pytest.mark.slow
@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("rows", [1000, 4096])
def test_a_compile_chooses_it_for_a_table(tmp_path: Path, rows: int, inline: bool) -> None:
    """The larger one stays packed."""
    model = proto(SENTENCES, embedding=weight(rows, 64), w1=weight(64, 32), w2=weight(32, 16, seed=1))
    tokens = np.random.default_rng(0).integers(0, rows, (32, 12))
    artifact = compiled(model, tokens, tmp_path, "11%", formats=ONLY, inline=inline)
    formats = {entry["weight"]: entry["format"] for entry in artifact.plan["weights"]}
    assert formats["embedding"] in map(str, ROW_FORMS)
    names = [function.name for function in ptqc_functions(artifact.path)]
    assert ("Gy" in names) == (rows == 4096 and not inline)
    ptqc.verify(artifact.folder)
    again = ptqc.resolve(artifact.folder, budget="9%", output=tmp_path / "again", cache=tmp_path / "cache")
    once_more = ptqc.resolve(artifact.folder, budget="9%", output=tmp_path / "more", cache=tmp_path / "cache")
    assert again.path.read_bytes() == once_more.path.read_bytes()
    ptqc.verify(again.folder)


def test_recurrent_matrices_have_it(tmp_path: Path) -> None:
    graph = """g (float[N,6,32] x) => (float[N,1,6,64] y) {
        t = Transpose<perm=[1,0,2]>(x)
        o, h, c = LSTM<hidden_size=64>(t, w, r)
        y = Transpose<perm=[2,1,0,3]>(o)
    }"""
    model = proto(graph, w=weight(1, 256, 32), r=weight(1, 256, 64, seed=1))
    artifact = compiled(model, samples(6, 32), tmp_path, "12%", formats=("tcq",))
    assert {entry["format"] for entry in artifact.plan["weights"]} <= {*map(str, ROW_FORMS)}
    ptqc.verify(artifact.folder)


@pytest.mark.parametrize(
    ("rows", "is_better"),
    [
        (np.random.default_rng(0).standard_normal((64, 96)), True),
        (np.random.default_rng(0).laplace(size=(64, 96)), True),
        (np.random.default_rng(0).standard_t(2, (64, 96)), False),
        (np.random.default_rng(0).exponential(size=(64, 96)), False),
        (np.zeros((64, 96)), True),
    ],
    ids=["normal", "Laplace", "heavy tails", "one sign", "zero"],
)
def test_codebooks_are_tried_beside_it_where_it_may_lose_more(rows: np.ndarray, is_better: bool) -> None:
    graph = "g (float[N,96] x) => (float[N,64] y) { y = MatMul(x, w) }"
    model = ir.from_proto(proto(graph, w=np.ascontiguousarray(rows.T, np.float32)))
    (layer_weight,) = find_weights(model, find_layers(model))
    forms = [*Trellis.offered((2, 4)), *Codebook.members(), *VectorCodebook.members()]
    tried = {form.family for form in suited(layer_weight, initial(model, "w"), forms)}
    assert tried == ({"tcq"} if is_better else {"tcq", "codebook", "pairs"})


def test_codebooks_of_widths_that_no_trellis_code_has_are_tried() -> None:
    """Half bits take an even number of outputs."""
    graph = "g (float[N,96] x) => (float[N,63] y) { y = MatMul(x, w) }"
    model = ir.from_proto(proto(graph, w=weight(96, 63)))
    (layer_weight,) = find_weights(model, find_layers(model))
    forms = [*Trellis.offered((2, 4)), *Codebook.members(), *VectorCodebook.members()]
    tried = {str(form) for form in suited(layer_weight, initial(model, "w"), forms)}
    assert {"tcq2", "tcq3", "tcq4", "pairs3", "pairs5", "pairs7"} <= tried
    assert tried.isdisjoint({"tcq2.5", "pairs4", "pairs6", "codebook2", "codebook3"})


@pytest.mark.slow
def test_where_no_format_asked_for_fits_a_layer_it_computes_in_float(tmp_path: Path) -> None:
    artifact = compiled(residual(), samples(3, 8, 8), tmp_path, "40%", formats=("tcq",), activations="integer")
    formats = {entry["weight"]: entry["format"] for entry in artifact.plan["weights"]}
    assert formats.pop("w4") == "float16"
    assert {name[:3] for name in formats.values()} == {"tcq"}
    ptqc.verify(artifact.folder)


class TooOld(ModuleType):
    """Refuses the NumPy that is installed, as Numba does when it is imported."""

    def __getattr__(self, name: str) -> Any:
        raise ImportError("Numba needs NumPy 2.0 or less")


@pytest.fixture(params=[None, pytest.param(TooOld("numba"), marks=pytest.mark.slow)], ids=["none", "too old"])
def without_numba(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", request.param)
    for name in ("viterbi", "trellis_steps"):
        monkeypatch.delitem(sys.modules, f"ptqc.formats.{name}", raising=False)
        monkeypatch.delattr(f"ptqc.formats.{name}", raising=False)


# Compiled code from one process to the next


IMPORTED = "from ptqc.formats.trellis_steps import _steps; print(len(_steps.stats.cache_hits))"


def hits(folder: Path) -> int:
    """How many functions a new process reads from the folder."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "NUMBA_CACHE_DIR": str(folder)}
    command = [sys.executable, "-c", IMPORTED]
    return int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


@pytest.mark.slow
def test_the_next_process_does_not_compile_again(tmp_path: Path) -> None:
    assert [hits(tmp_path), hits(tmp_path)] == [0, 1]
    for path in tmp_path.rglob("*.nb?"):
        path.write_bytes(path.read_bytes()[:100])
    assert hits(tmp_path) == 0


def test_where_compiled_code_cannot_be_stored_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    njit = numba.njit

    def full(*arguments: Any, cache: bool = False, **options: Any) -> Any:
        if cache:
            raise OSError(errno.ENOSPC, "No space left on device")
        return njit(*arguments, **options)

    monkeypatch.setattr(numba, "njit", full)
    assert compiled_by_numba("i8(i8)")(lambda number: number + 1)(2) == 3


LACK = r"tcq\) need Numba: pip install 'numba>=0.61'"


@pytest.mark.usefixtures("without_numba")
def test_without_numba_that_works_it_is_refused_early(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=LACK):
        compiled(residual(), samples(3, 8, 8), tmp_path, "30%", formats=ONLY)


@pytest.mark.slow
@pytest.mark.usefixtures("without_numba")
def test_without_numba_that_works_models_have_the_formats_that_it_would_take_the_place_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trellis, "from_numbers", 0)
    artifact = compiled(residual(), samples(3, 8, 8), tmp_path, "14%", bits=(2, 3))
    assert any(name.startswith("pairs") for name in formats_in(artifact))
    assert [note for note in artifact.warnings if re.search(LACK, str(note))]
    monkeypatch.undo()  # with Numba, what was measured without it is not taken from the store
    monkeypatch.setattr(Trellis, "from_numbers", 0)
    again = compiled(residual(), samples(3, 8, 8), tmp_path, "14%", bits=(2, 3), output=tmp_path / "again")
    assert any(name.startswith("tcq") for name in formats_in(again))


@pytest.mark.slow
def test_only_models_that_are_large_enough_have_it_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = compiled(residual(), samples(3, 8, 8), tmp_path / "small", "14%", bits=(2, 3))
    assert not [name for name in formats_in(small) if name.startswith("tcq")]
    monkeypatch.setattr(Trellis, "from_numbers", 1000)
    large = compiled(residual(), samples(3, 8, 8), tmp_path / "large", "14%", bits=(2, 3))
    assert [name for name in formats_in(large) if name.startswith("tcq")]
