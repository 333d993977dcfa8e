"""Every form: NumPy, ONNX Runtime and the bits that it keeps from run to run."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import parse
from hypothesis import given
from hypothesis import strategies as st

from ptqc.execution.onnxruntime import Runner
from ptqc.kv_cache.block_float import BlockFloat, block_of
from ptqc.kv_cache.form import CacheForm, packed_feeds
from ptqc.kv_cache.known import FIXED, NAMES, from_json, to_json
from ptqc.kv_cache.scaled import ScaledRows
from ptqc.passes.kv_cache.key_order import block_rounded
from ptqc.passes.kv_cache.wrap import form_named, pack_caches

CACHE = "g (float[N,2,P,8] past, float[N,2,T,8] x) => (float[N,2,Q,8] present) { present = Concat<axis=2>(past, x) }"


def rows(seed: int, *shape: int) -> np.ndarray:
    """Numbers of which some rows, and some channels, are much larger."""
    random = np.random.default_rng(seed)
    sizes = np.exp(2 * random.standard_normal((*shape[:-1], 1)) + random.standard_normal(shape[-1]))
    return (random.standard_normal(shape) * sizes).astype(np.float32)


def form(name: str) -> CacheForm:
    return form_named(name, [rows(7, 1, 2, 40, 8)])


@given(st.integers(0, 10**6), st.sampled_from(NAMES))
def test_what_was_packed_packs_to_the_same(seed: int, name: str) -> None:
    packing, x = form(name), rows(seed, 1, 2, 5, 8)
    stored = packing.pack(x)
    again = packing.pack(packing.unpack(*stored))
    assert all(np.array_equal(a, b) for a, b in zip(again, stored, strict=True))
    parts = [(part.dtype.numpy(), part.size) for part in packing.parts(8)]
    assert [(array.dtype, array.shape[-1]) for array in stored] == parts
    assert sum(array.nbytes for array in stored) == 10 * packing.row_bytes(8)


@given(st.integers(0, 10**6), st.sampled_from([127, 7]))
def test_codes_are_off_by_half_a_step(seed: int, levels: int) -> None:
    x = rows(seed, 1, 2, 5, 8)
    largest = np.abs(x).max(-1, keepdims=True)
    error = np.abs(ScaledRows(levels).unpack(*ScaledRows(levels).pack(x)) - x)
    # Scales are rounded to 11 bits, or are 2^-14 at least; the largest code is then off by more than half a step.
    assert (error <= 0.5001 * np.maximum(largest / levels, 2.0**-14) + largest * 2.0**-11).all()


@pytest.mark.parametrize("size", [8, 16, 64])
def test_blocks_are_rounded_as_the_format_says(size: int) -> None:
    x = rows(3, 2, 3, 7, size)
    assert np.array_equal(BlockFloat().unpack(*BlockFloat().pack(x)), block_rounded(x, 4, block_of(size)))


def test_sorted_blocks_are_those_of_all_heads() -> None:
    x = rows(3, 1, 2, 7, 8)
    sorted_ = form_named("bfp4-sorted", [x])
    assert isinstance(sorted_, BlockFloat)
    energy = (x.astype(np.float64) ** 2).sum((0, 2)).ravel()
    assert (np.diff(energy[list(sorted_.order)]) <= 0).all()
    flat = x.transpose(0, 2, 1, 3).reshape(1, 7, 16)[..., list(sorted_.order)]
    wanted = block_rounded(flat, 4, 8)[..., np.argsort(sorted_.order)].reshape(1, 7, 2, 8).transpose(0, 2, 1, 3)
    assert np.array_equal(sorted_.unpack(*sorted_.pack(x)), wanted)


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_zeros_and_no_rows(name: str) -> None:
    packing = form(name)
    assert not packing.unpack(*packing.pack(np.zeros((1, 2, 3, 8), np.float32))).any()
    empty = [np.zeros((1, 2, 3, part.size), part.dtype.numpy()) for part in packing.parts(8)]
    assert not packing.unpack(*empty).any()  # as a cache of a fixed size begins
    assert [len(array[0, 0]) for array in packing.pack(np.zeros((1, 2, 0, 8), np.float32))] == [0] * len(empty)


@pytest.mark.parametrize("name", NAMES)
def test_numbers_beyond_the_range_stay_finite_or_become_infinite_as_float16_does(name: str) -> None:
    x = np.full((1, 2, 1, 8), 1e30, np.float32)
    x[..., 0] = 1e-30
    result = form(name).unpack(*form(name).pack(x))
    assert np.isfinite(result).all() or name == "float16"


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("name", NAMES)
def test_the_graph_packs_as_numpy_does(name: str, opset: int) -> None:
    model, packing = parse(CACHE, opset), form(name)
    forms = {"past": packing}
    pack_caches(model, forms)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    past, x = rows(1, 1, 2, 5, 8), rows(2, 1, 2, 9, 8)
    x[0, 0, :3] = [[0.0], [1.0], [2.0**-40]]  # where logarithms are whole
    parts = packed_feeds({"past": past}, forms)
    assert [value.name for value in model.graph.inputs] == [*parts, "x"]
    assert [value.name for value in model.graph.outputs] == [part.replace("past", "present") for part in parts]
    runner, stored = Runner(model), {**parts, "x": x}
    for _ in range(3):
        result = runner.run(stored)
        whole = np.concatenate([packing.unpack(*(stored[name] for name in parts)), x], 2)
        for name, wanted in zip(parts, packing.pack(whole), strict=True):
            present = result[name.replace("past", "present")]
            assert present.dtype == wanted.dtype
            assert np.array_equal(present, wanted)
            assert np.array_equal(present[:, :, : stored[name].shape[2]], stored[name])
        stored = {**{name: result[name.replace("past", "present")] for name in parts}, "x": x}
    empty = packed_feeds({"past": past[:, :, :0], "x": x}, forms)
    assert runner.run(empty)["present"].shape[2] == 9


@pytest.mark.parametrize("name", NAMES)
def test_an_output_need_not_say_how_many_channels_it_has(name: str) -> None:
    model, packing = parse(CACHE.replace("Q,8]", "Q,C]")), form(name)
    pack_caches(model, {"past": packing})
    sizes = [value.shape[-1] for value in model.graph.outputs if value.shape is not None]
    assert sizes == [part.size for part in packing.parts(8)]


@pytest.mark.parametrize("name", NAMES)
def test_forms_are_kept_as_documents(name: str) -> None:
    assert from_json(to_json(form(name))) == form(name)
    assert form(name).name == name


def test_what_cannot_be_stored_so_says_why() -> None:
    assert FIXED["int4"].refusal(5) == "5 channels are an odd number"
    assert FIXED["bfp4"].refusal(6) == "6 channels have no blocks of 4 or more"
    assert [block_of(size) for size in (8, 12, 48, 64, 128)] == [8, 4, 16, 32, 32]
