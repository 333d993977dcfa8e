"""Products with kept keys and values against NumPy: every form, few places and many, heads that queries share."""

import shutil
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from building import Case, opened, present, run
from graphs import noise, parse
from lowering import quantized
from random_decoders import drawn

from ptqc.codegen.cpu import isa, worker
from ptqc.codegen.cpu.jobs import Choices
from ptqc.codegen.cpu.target import build
from ptqc.codegen.kernels.families import kv_attention
from ptqc.codegen.kernels.families.kv_attention import CodedRows, KvRows, PairedRows, Places, RealRows
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.jobs import write_job
from ptqc.codegen.onnxruntime.export import Exported, export
from ptqc.codegen.program.batching import Batching
from ptqc.codegen.program.layout import Layout
from ptqc.errors import VerificationError
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.ir.lowered import Lowered
from ptqc.kv_cache.form import CacheForm, packed_feeds
from ptqc.kv_cache.known import FIXED
from ptqc.passes.kv_cache.wrap import pack_caches

pytestmark = pytest.mark.processor
TEXTS, HEADS = 2, 3
FORMS = ("float32", "float16", "int8", "int4")
# Places, channels and rows of a head: fewer places than a vector has elements, and more; channels that fill vectors,
# and that do not.
SIZES = ((5, 8, 1), (37, 64, 3), (18, 12, 2))
# A decoder of one layer that reads one word at a time; four heads of queries share two of keys and values.
WIDTH, DEPTH, SHARED, TIMES = 32, 8, 2, 2
CACHE, GROWN = (f"float[N, {SHARED}, {places}, {DEPTH}]" for places in "PA")
WIDE = """{x}1 = Unsqueeze({x}, two) {x}2 = Expand({x}1, times) {x}3 = Reshape({x}2, heads) """
DECODER = (
    f"g (float[N, 1, {WIDTH}] x, {CACHE} past_key_0, {CACHE} past_value_0)"
    f" => (float[N, 1, {WIDTH}] y, {GROWN} present_key_0, {GROWN} present_value_0) {{"
    """ q0 = MatMul(x, wq) k0 = MatMul(x, wk) v0 = MatMul(x, wv)
    q1 = Reshape(q0, split) q = Transpose <perm = [0, 2, 1, 3]> (q1)
    k1 = Reshape(k0, split) k = Transpose <perm = [0, 2, 1, 3]> (k1)
    v1 = Reshape(v0, split) v = Transpose <perm = [0, 2, 1, 3]> (v1)
    present_key_0 = Concat <axis = 2> (past_key_0, k) present_value_0 = Concat <axis = 2> (past_value_0, v) """
    + WIDE.format(x="present_key_0")
    + WIDE.format(x="present_value_0")
    + """turned = Transpose <perm = [0, 1, 3, 2]> (present_key_03) products = MatMul(q, turned)
    shares = Softmax(products) mixed = MatMul(shares, present_value_03)
    rows = Transpose <perm = [0, 2, 1, 3]> (mixed) flat = Reshape(rows, whole) y = MatMul(flat, wo) }"""
)
CONSTANTS = {
    **{name: noise(WIDTH, WIDTH, seed=seed, scale=0.3) for seed, name in enumerate(("wq", "wo"))},
    **{name: noise(WIDTH, SHARED * DEPTH, seed=seed, scale=0.3) for seed, name in enumerate(("wk", "wv"), 2)},
    "split": np.array([0, 0, -1, DEPTH]),
    "two": np.array([2]),
    "times": np.array([1, 1, TIMES, 1, 1]),
    "heads": np.array([0, SHARED * TIMES, -1, DEPTH]),
    "whole": np.array([0, 0, WIDTH]),
}


def layout(array: np.ndarray) -> Layout:
    return Layout(array.shape[1:], str(array.dtype), row_major=True)


def packed(form: str, x: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """The parts of rows, and the real values that they stand for."""
    if form == "float32":
        return [x], x
    parts = FIXED[form].pack(x)
    return list(parts), FIXED[form].unpack(*parts)


def rows_of(form: str, parts: list[np.ndarray]) -> KvRows:
    layouts = tuple(layout(part) for part in parts)
    match form:
        case "int8":
            return CodedRows(layouts, 128)
        case "int4":
            return PairedRows(layouts, 8)
        case _:
            return RealRows(layouts)


def cases(form: str, places: int, channels: int, rows: int, chosen: Isa) -> tuple[list[Case], list[np.ndarray]]:
    """Both products, with and without new places behind the others, and what they should be."""
    made, wanted = [], []
    for news in (0, 2):
        size = (TEXTS, HEADS, places + news, channels)
        parts, past = packed(form, noise(*size, seed=places)[:, :, :places])
        new = noise(*size, seed=7)[:, :, places:]
        every = np.concatenate([past, new], 2)
        behind = RealRows((layout(new),)) if news else None
        value, layouts = [*parts, *([new] if news else [])], Places(rows_of(form, parts), behind)
        for left, right, write in (
            (noise(TEXTS, HEADS, rows, channels), np.swapaxes(every, 2, 3), kv_attention.scores),
            (noise(TEXTS, HEADS, rows, places + news), every, kv_attention.mixed),
        ):
            y = left.astype(np.float64) @ right
            out = Layout(y.shape[1:], "float32", row_major=True)
            built = write(layout(left), layouts, out, chosen)
            made.append(Case(built, [layout(left), *layouts.layouts], [left, *value], out))
            wanted.append(y)
    return made, wanted


def check(chosen: Isa, folder: Path, sizes: Iterable[tuple[str, tuple[int, int, int]]]) -> None:
    """sizes: of each form."""
    pairs = [cases(form, *size, chosen) for form, size in sizes]
    made = [case for some, _ in pairs for case in some]
    wanted = [y for _, some in pairs for y in some]
    for y, case, result in zip(wanted, made, run(made, chosen, folder), strict=True):
        assert np.abs(result - y).max() <= 2e-6 * np.abs(y).max(), case.given


@pytest.mark.parametrize("chosen", present(), ids=lambda result: result.name)
def test_every_form(chosen: Isa, tmp_path: Path) -> None:
    check(chosen, tmp_path, zip(FORMS, (*SIZES, SIZES[0]), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("chosen", present(isa.AVX512_VBMI), ids=lambda result: result.name)
def test_every_form_of_every_size(chosen: Isa, tmp_path: Path) -> None:
    check(chosen, tmp_path, product(FORMS, SIZES))


@pytest.mark.long
def test_a_decoder_reads_its_caches_where_they_are(tmp_path: Path) -> None:
    check_decoder("int8", "int4", tmp_path)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    low, exported, feeds = decoder("int8", "int4")[1:]
    write_job(folder, low, exported, feeds, Choices(Batching(None, is_any=False, varies=True), "avx2"))
    return folder


def of_even_rows(right: Any) -> Any:
    """Every other row has the scale of the one before."""

    def row(self: CodedRows, buffers: Any, sample: Any, place: Any, lanes: int) -> Any:
        return right(self, buffers, sample, place, lanes)[0], right(self, buffers, sample, place - place % 2, lanes)[1]

    return row


def halves_swapped(right: Any) -> Any:
    def row(self: PairedRows, *rest: Any) -> Any:
        read, scale = right(self, *rest)
        return lambda channel: read((channel + self.run) % self.channels), scale

    return row


def off_by_one(right: Any) -> Any:
    return lambda self, *rest: right(replace(self, middle=self.middle + 1), *rest)


FAULTS = {
    "scales of other rows": (CodedRows, "row", of_even_rows),
    "halves of bytes swapped": (PairedRows, "row", halves_swapped),
    "middle off by one": (CodedRows, "row", off_by_one),
    "places out of order": (kv_attention, "_neighbours", lambda right: lambda a, b, lanes: right(b, a, lanes)),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str, job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = shutil.copytree(job, tmp_path / "job")
    place, name, change = FAULTS[fault]
    monkeypatch.setattr(place, name, change(getattr(place, name)))
    with pytest.raises(VerificationError, match="differs from the ONNX file at"):
        worker.build(own)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_decoder_with_caches_of_one_form(form: str, tmp_path: Path) -> None:
    check_decoder(form, form, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_random_decoders(seed: int, tmp_path: Path) -> None:
    made = drawn(seed)
    feeds = [made.packed(7, place) for place in range(3)]
    low = quantized(made.model, feeds)
    native = build(low.lowered, export(low.lowered, low.model), feeds, tmp_path)
    (report,) = native.document["libraries"]
    assert report["steps"]["scores"] == report["steps"]["mixed"] == 1


def decoder(keys: str, values: str) -> tuple[dict[str, CacheForm], Lowered, Exported, list[Feeds]]:
    """A decoder lowered and exported, with forms of its caches, and samples that it takes."""
    model = parse(DECODER, **CONSTANTS)
    named = {"past_key_0": keys, "past_value_0": values}
    forms = {name: FIXED[form] for name, form in named.items() if form in FIXED}
    pack_caches(model, forms)
    feeds = [packed_feeds(step(7, seed), forms) for seed in range(3)]
    low = quantized(model, feeds)
    return forms, low.lowered, export(low.lowered, low.model), feeds


def check_decoder(keys: str, values: str, folder: Path) -> None:
    """Build its library, which is compared with the file, and run it at other lengths."""
    forms, lowered, exported, feeds = decoder(keys, values)
    native = build(lowered, exported, feeds, folder)
    (report,) = native.document["libraries"]
    assert "fixed_sizes" not in native.document
    assert report["steps"]["scores"] == report["steps"]["mixed"] == 1
    assert not {"matmul_float", "repeat"} & report["steps"].keys()
    outputs = [value.name for value in exported.proto.graph.output]
    assert report["steps"]["concat"] == sum(name.startswith("present") for name in outputs)
    library, runner = opened(native), Runner(exported.proto)
    for places in (0, 1, 40):
        inputs = packed_feeds(step(places, places), forms)
        result, wanted = library.run(inputs), runner.run(inputs)
        assert np.abs(result["y"] - wanted["y"]).max() <= 0.05 * np.abs(wanted["y"]).max()
        assert all(np.array_equal(result[name], array) for name, array in wanted.items() if array.dtype == np.uint8)


def step(places: int, seed: int) -> Feeds:
    caches = {
        f"past_{kind}_0": noise(1, SHARED, places, DEPTH, seed=seed + n) for n, kind in enumerate(("key", "value"))
    }
    return {"x": noise(1, 1, WIDTH, seed=seed + 5), **caches}
