"""Caches as codes: what the graph packs is what NumPy packs, bit by bit, and stays so from run to run."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import tiny_llama_model
from compiling import compiled, quick
from graphs import parse
from hypothesis import given
from hypothesis import strategies as st

import ptqc
from ptqc.calibration.inputs import input_specs
from ptqc.calibration.samples import Samples, collect
from ptqc.errors import UsageError
from ptqc.execute.onnxruntime import Feeds, Runner
from ptqc.options import CompileOptions, KvCache
from ptqc.reading import ModelSource, read_model
from ptqc.stages.preparing.packed_caches import (
    LEVELS,
    PackedCaches,
    Packing,
    pack_caches,
    packed_feeds,
    with_packed_caches,
)

tiny_llama = tiny_llama_model.tiny_llama
PACKINGS = {name: Packing(levels) for name, levels in LEVELS.items()}
CACHE = "g (float[N,2,P,4] past, float[N,2,T,4] x) => (float[N,2,Q,4] present) { present = Concat<axis=2>(past, x) }"


def rows(seed: int, *shape: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    return (random.standard_normal(shape) * np.exp(random.standard_normal((*shape[:-1], 1)))).astype(np.float32)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    """One small layer with a cache that grows."""
    path = tmp_path_factory.mktemp("llama") / "llama.onnx"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"LAYERS": 1, "WIDTH": 64, "INNER": 96, "SIZE": 16, "VOCABULARY": 64}.items():
            patch.setattr(tiny_llama, name, value)
        onnx.save(tiny_llama.build(), path)
    return read_model(path)


def feeds(count: int, past: int = 9) -> list[Feeds]:
    random = np.random.default_rng(0)
    return [
        {
            "tokens": random.integers(0, 64, (1, 1)),
            "past_key_0": rows(2 * place, 1, 2, past, 16),
            "past_value_0": rows(2 * place + 1, 1, 2, past, 16),
        }
        for place in range(count)
    ]


def packed(llama: ModelSource, folder: Path, asked: KvCache, given: list[Feeds]) -> tuple[PackedCaches, Samples]:
    samples = collect(given, input_specs(llama.model), folder / "samples", len(given))
    return with_packed_caches(llama, samples, samples[:2], asked, folder), samples


@given(st.integers(0, 10**6), st.sampled_from(sorted(PACKINGS)))
def test_what_was_packed_packs_to_the_same(seed: int, kind: str) -> None:
    packing, x = PACKINGS[kind], rows(seed, 3, 5, 8)
    codes, scale = packing.pack(x)
    again = packing.pack(packing.unpack(codes, scale))
    assert np.array_equal(again[0], codes)
    assert np.array_equal(again[1], scale)
    assert np.abs(packing.unpack(codes, scale) - x).max() <= 0.5001 * scale.max()


@pytest.mark.parametrize("kind", PACKINGS)
def test_rows_of_zeros_and_no_rows(kind: str) -> None:
    packing = PACKINGS[kind]
    assert not packing.unpack(*packing.pack(np.zeros((2, 4), np.float32))).any()
    assert not packing.unpack(
        np.zeros((1, packing.pack(np.zeros((1, 4)))[0].shape[1]), np.uint8), np.zeros((1, 1))
    ).any()
    codes, scale = packing.pack(np.zeros((0, 4), np.float32))
    assert (len(codes), len(scale)) == (0, 0)
    assert packing.bytes(64) == packing.pack(rows(0, 1, 64))[0].nbytes + 4


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("kind", PACKINGS)
def test_the_graph_packs_as_numpy_does(kind: str, opset: int) -> None:
    model, packing = parse(CACHE, opset), PACKINGS[kind]
    pack_caches(model, {"past": packing})
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert [value.name for value in model.graph.inputs] == ["past", "past.scale", "x"]
    assert [value.name for value in model.graph.outputs] == ["present", "present.scale"]
    past, x = rows(1, 1, 2, 5, 4), rows(2, 1, 2, 3, 4)
    runner, stored = Runner(model), packed_feeds({"past": past, "x": x}, {"past": packing})
    for _ in range(3):
        found = runner.run(stored)
        whole = np.concatenate([packing.unpack(stored["past"], stored["past.scale"]), x], 2)
        codes, scale = packing.pack(whole)
        assert np.array_equal(found["present"], codes)
        assert np.array_equal(found["present.scale"], scale)
        assert np.array_equal(found["present"][:, :, : stored["past"].shape[2]], stored["past"])
        stored = {"past": found["present"], "past.scale": found["present.scale"], "x": x}
    empty = packed_feeds({"past": past[:, :, :0], "x": x}, {"past": packing})
    assert runner.run(empty)["present"].shape[2] == 3


@pytest.mark.parametrize("kind", PACKINGS)
def test_an_output_need_not_say_how_many_channels_it_has(kind: str) -> None:
    model = parse(CACHE.replace("Q,4]", "Q,C]"))
    pack_caches(model, {"past": PACKINGS[kind]})
    present, wanted = model.graph.outputs[0], {"int8": 4, "int4": 2}
    assert present.shape is not None
    assert present.shape[-1] == wanted[kind]


def test_a_model_and_its_samples(llama: ModelSource, tmp_path: Path) -> None:
    found, samples = packed(llama, tmp_path, {"past_key_0": "int4"}, feeds(4))
    taken = {spec.name: (spec.dtype.name, spec.shape) for spec in input_specs(found.source.model)}
    assert taken["past_key_0"] == ("uint8", ("N", 2, "P", 8))
    assert taken["past_key_0.scale"] == ("float32", ("N", 2, "P", 1))
    assert taken["past_value_0"] == ("float32", ("N", 2, "P", 16))
    assert "past_key_0.scale" not in {spec.name for spec in input_specs(llama.model)}
    assert found.judging is not None
    assert [len(found.samples), len(found.judging)] == [4, 2]
    wanted = packed_feeds(samples[1], {"past_key_0": PACKINGS["int4"]})
    assert all(np.array_equal(found.samples[1][name], array) for name, array in wanted.items())


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_bytes_and_loss_are_told(llama: ModelSource, tmp_path: Path, kind: str) -> None:
    found, samples = packed(llama, tmp_path, kind, feeds(4))  # type: ignore[arg-type]
    told = [note.message for note in found.source.notes[-2:]]
    row = {"int8": 20, "int4": 12}[kind]
    assert told[0] == f"2 caches are packed: a token takes {4 * row} bytes in them, not 256"
    assert "nat in one step, on 4 samples with something cached" in told[1]
    real = [Runner(llama.model).run(one)["logits"] for one in samples]
    stored = [Runner(found.source.model).run(one)["logits"] for one in found.samples]
    chances = [np.exp(logits) / np.exp(logits).sum(-1, keepdims=True) for logits in real]
    others = [logits - np.log(np.exp(logits).sum(-1, keepdims=True)) for logits in stored]
    losses = [(p * (np.log(p) - q)).sum() for p, q in zip(chances, others, strict=True)]
    assert float(told[1].split(" nat")[0].removeprefix("that loses ").replace("×10⁻", "e-").translate(DIGITS)) == (
        pytest.approx(np.mean(losses), rel=0.02)
    )


DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")


def test_samples_without_a_past_show_nothing(llama: ModelSource, tmp_path: Path) -> None:
    found, _ = packed(llama, tmp_path, "int8", feeds(4, past=0))
    assert "nothing shows what packed caches lose" in found.source.notes[-1].message


def test_nothing_asked_for_changes_nothing(llama: ModelSource, tmp_path: Path) -> None:
    found, samples = packed(llama, tmp_path, "float", feeds(2))
    assert found.source is llama
    assert found.samples is samples


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"past_key_7": "int8"}, "'past_key_7' is no cache of the model; it has past_key_0, past_value_0"),
        ({"tokens": "int8"}, "'tokens' is no cache"),
    ],
)
def test_what_is_no_cache_is_refused(llama: ModelSource, tmp_path: Path, asked: KvCache, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        packed(llama, tmp_path, asked, feeds(2))


@pytest.mark.parametrize(
    ("graph", "opset", "told"),
    [
        ("g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }", 18, "the model has no cache of keys and values"),
        (CACHE.replace("float", "float16"), 18, "'past' is of FLOAT16; only float32 can be packed"),
        (CACHE.replace(",4]", ",3]"), 18, "'past' has 3 channels; give a model with a fixed, even number"),
        (CACHE.replace(",4]", ",C]"), 18, "'past' has C channels"),
        (CACHE, 10, "needs opset 11 or newer"),
    ],
)
def test_caches_that_cannot_be_packed_are_refused(
    llama: ModelSource, tmp_path: Path, graph: str, opset: int, told: str
) -> None:
    other = replace(llama, model=parse(graph, opset))
    samples = Samples(tmp_path, ())
    with pytest.raises(UsageError, match=told):
        with_packed_caches(other, samples, None, "int4", tmp_path)


def test_kinds_are_checked() -> None:
    with pytest.raises(UsageError, match="kv_cache is 'int2'; known: float, int8, int4"):
        CompileOptions.of({"kv_cache": "int2"})
    with pytest.raises(UsageError, match="kv_cache of 'past_key_0' is 'fp8'"):
        CompileOptions.of({"kv_cache": {"past_key_0": "fp8"}})


def test_a_decoder_compiles_with_packed_caches(llama: ModelSource, tmp_path: Path) -> None:
    """What unpacks and packs stays in float, and says nothing in the file."""
    artifact = compiled(llama.path, feeds(8), tmp_path, bits=(7,), kv_cache="int4")
    file = onnx.load(artifact.path)
    assert [value.name for value in file.graph.output][1:3] == ["present_key_0", "present_key_0.scale"]
    assert not any(node.metadata_props for node in file.graph.node)
    assert artifact.manifest["options"]["kv_cache"] == "int4"
    assert any(note["message"].startswith("2 caches are packed") for note in artifact.manifest["notes"])
    given = packed_feeds(feeds(1)[0], dict.fromkeys(("past_key_0", "past_value_0"), PACKINGS["int4"]))
    found = artifact.run(given)
    assert np.array_equal(found["present_key_0"][:, :, :9], given["past_key_0"])
    assert np.array_equal(found["present_key_0.scale"][:, :, :9], given["past_key_0.scale"])
    with quick():
        again = ptqc.resolve(artifact.folder, output=tmp_path / "again", cache=tmp_path / "cache")
    assert again.path.read_bytes() == artifact.path.read_bytes()
