"""Packed caches in a compile: forms that are asked for, or that a budget chooses; bytes and losses that are told."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny_llama_model
from compiling import compiled, quick
from graphs import parse
from mostly_slow import mostly_slow

import ptqc
from ptqc.budget import parse_budgets
from ptqc.calibration.inputs import input_specs
from ptqc.calibration.samples import Samples, collect
from ptqc.errors import CalibrationError, Infeasible, UsageError
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.frontend import ModelSource, read_model
from ptqc.kv_cache.form import packed_feeds
from ptqc.kv_cache.known import FIXED, NAMES, from_json
from ptqc.options import CacheKind, CompileOptions, KvCache
from ptqc.passes.allocate.constraints.caches import CacheBudget
from ptqc.passes.kv_cache.apply import PackedCaches, with_packed_caches
from ptqc.passes.kv_cache.choose import CacheStatistics

tiny_llama = tiny_llama_model.tiny_llama
CACHE = "g (float[N,2,P,4] past, float[N,2,T,4] x) => (float[N,2,Q,4] present) { present = Concat<axis=2>(past, x) }"
ROW = {"float16": 32, "int8": 18, "int4": 10, "bfp4": 9, "bfp4-sorted": 9}  # bytes of 16 channels


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


def packed(
    llama: ModelSource, folder: Path, asked: KvCache, values: list[Feeds], budget: str = ""
) -> tuple[PackedCaches, Samples]:
    samples = collect(values, input_specs(llama.model), folder / "samples", len(values))
    limit = parse_budgets(budget or None).get(CacheBudget)
    return with_packed_caches(llama, samples, samples[:2], asked, limit, folder), samples


def test_a_model_and_its_samples(llama: ModelSource, tmp_path: Path) -> None:
    result, samples = packed(llama, tmp_path, {"past_key_0": "int4"}, feeds(4))
    taken = {spec.name: (spec.dtype.name, spec.shape) for spec in input_specs(result.source.model)}
    assert taken["past_key_0"] == ("uint8", ("N", 2, "P", 8))
    assert taken["past_key_0.scale"] == ("float16", ("N", 2, "P", 1))
    assert taken["past_value_0"] == ("float32", ("N", 2, "P", 16))
    assert "past_key_0.scale" not in {spec.name for spec in input_specs(llama.model)}
    assert result.judging is not None
    assert [len(result.samples), len(result.judging)] == [4, 2]
    wanted = packed_feeds(samples[1], {"past_key_0": FIXED["int4"]})
    assert all(np.array_equal(result.samples[1][name], array) for name, array in wanted.items())


@pytest.mark.parametrize("kind", NAMES)
def test_bytes_and_loss_are_told(llama: ModelSource, tmp_path: Path, kind: CacheKind) -> None:
    result, samples = packed(llama, tmp_path, kind, feeds(4))
    messages = [note.message for note in result.source.notes[-2:]]
    row = ROW[kind]
    assert messages[0] == f"2 caches are packed (2 as {kind}): they take {40 * row:,} bytes for 10 tokens, not 2,560"
    assert "nat in one step, on samples with something cached" in messages[1]
    assert result.description is not None
    assert [result.description["bytes"], result.description["float_bytes"], result.description["places"]] == [
        40 * row,
        2560,
        10,
    ]
    assert {cache["form"] for cache in result.description["caches"]} == {kind}
    # Every other sample judges.
    real = [one["logits"].astype(np.float64) for one in map(Runner(llama.model).run, samples[1::2])]
    stored = [one["logits"].astype(np.float64) for one in map(Runner(result.source.model).run, result.samples[1::2])]
    chances = [np.exp(logits) / np.exp(logits).sum(-1, keepdims=True) for logits in real]
    others = [logits - np.log(np.exp(logits).sum(-1, keepdims=True)) for logits in stored]
    losses = [(p * (np.log(p) - q)).sum() for p, q in zip(chances, others, strict=True)]
    assert result.description["loss"] == pytest.approx(np.mean(losses), rel=1e-3, abs=1e-7)


def test_samples_without_a_past_show_nothing(llama: ModelSource, tmp_path: Path) -> None:
    result, _ = packed(llama, tmp_path, "int8", feeds(4, past=0))
    assert "the loss of packed caches is unknown" in result.source.notes[-1].message


def test_nothing_asked_for_changes_nothing(llama: ModelSource, tmp_path: Path) -> None:
    result, samples = packed(llama, tmp_path, "float", feeds(2))
    assert result.source is llama
    assert result.samples is samples


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"past_key_7": "int8"}, "'past_key_7' is not a cache of the model; it has past_key_0, past_value_0"),
        ({"tokens": "int8"}, "'tokens' is not a cache"),
    ],
)
def test_what_is_no_cache_is_refused(llama: ModelSource, tmp_path: Path, asked: KvCache, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        packed(llama, tmp_path, asked, feeds(2))


@pytest.mark.parametrize(
    ("graph", "opset", "expected"),
    [
        ("g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }", 18, "the model has no cache of keys and values"),
        (CACHE.replace("float", "float16"), 18, "'past' cannot be int4: it is of FLOAT16; only float32 can be packed"),
        (CACHE.replace(",4]", ",3]"), 18, "'past' cannot be int4: 3 channels are an odd number"),
        (CACHE.replace(",4]", ",C]"), 18, "its number of channels is open"),
        (CACHE, 11, "the model has opset 11, and packing needs 12 or newer"),
    ],
)
def test_caches_that_cannot_be_packed_are_refused(
    llama: ModelSource, tmp_path: Path, graph: str, opset: int, expected: str
) -> None:
    other = replace(llama, model=parse(graph, opset))
    samples = Samples(tmp_path, ())
    with pytest.raises(UsageError, match=expected):
        with_packed_caches(other, samples, None, "int4", None, tmp_path)


def test_caches_that_are_not_finite_are_refused(llama: ModelSource, tmp_path: Path) -> None:
    endless = CACHE.replace("present = Concat<axis=2>(past, x)", "z = Log(x) present = Concat<axis=2>(past, z)")
    samples = [{"past": rows(0, 1, 2, 3, 4), "x": np.zeros((1, 2, 1, 4), np.float32)}] * 2
    with pytest.raises(CalibrationError, match=r"cache present holds NaN or infinite .* with --kv-cache past=float"):
        packed(replace(llama, model=parse(endless, 18)), tmp_path, "float16", samples)


def test_a_cache_that_grows_at_its_beginning_is_refused(llama: ModelSource, tmp_path: Path) -> None:
    model = parse(CACHE.replace("(past, x)", "(x, past)"), 18)
    samples = [{"past": rows(0, 1, 2, 3, 4), "x": rows(1, 1, 2, 1, 4)}] * 2
    with pytest.raises(UsageError, match=r"does not hand on what comes in as past at the .* --kv-cache past=float"):
        packed(replace(llama, model=model), tmp_path, "int8", samples)


def test_samples_that_the_model_does_not_run_on_are_named(llama: ModelSource, tmp_path: Path) -> None:
    open_channels = CACHE.replace("T,4] x", "T,C] x")
    samples = [{"past": rows(0, 1, 2, 3, 4), "x": rows(1, 1, 2, 1, 5)}] * 2
    with pytest.raises(CalibrationError, match="the model does not run on 'past' of shape"):
        packed(replace(llama, model=parse(open_channels, 18)), tmp_path, "int8", samples)


def test_kinds_are_checked() -> None:
    with pytest.raises(UsageError, match="kv_cache is 'int2'; known: float, float16, int8, int4, bfp4, bfp4-sorted"):
        CompileOptions.of({"kv_cache": "int2"})
    with pytest.raises(UsageError, match="kv_cache of input 'past_key_0' is 'fp8'"):
        CompileOptions.of({"kv_cache": {"past_key_0": "fp8"}})


@pytest.mark.parametrize("share", mostly_slow([15, 20, 28, 40, 60, 100], 15, 40))
def test_a_budget_takes_the_forms_that_lose_least(llama: ModelSource, tmp_path: Path, share: int) -> None:
    """By trying all."""
    model = llama.model
    result, samples = packed(llama, tmp_path, "float", feeds(4), f"{share}%cache")
    assert result.description is not None
    assert result.description["bytes"] <= 2560 * share // 100 == result.description["limit_bytes"]
    seen = CacheStatistics(model, samples)
    alone = {
        (cache, name): (0.0, 1280) if form is None else (seen.loss({cache: form}), seen.bytes(cache, form))
        for cache in seen.caches
        for name in ("float", *NAMES)
        for form in [seen.form(cache, name)]
    }
    pairs = [
        (alone["past_key_0", key][0] + alone["past_value_0", value][0], key, value)
        for key in ("float", *NAMES)
        for value in ("float", *NAMES)
        if alone["past_key_0", key][1] + alone["past_value_0", value][1] <= result.description["limit_bytes"]
    ]
    tried = [min(pairs)[1:], *((name, name) for name in NAMES if ROW[name] * 40 <= result.description["limit_bytes"])]
    plans = [{"past_key_0": seen.form("past_key_0", k), "past_value_0": seen.form("past_value_0", v)} for k, v in tried]
    wanted = min(seen.loss({name: form for name, form in plan.items() if form is not None}) for plan in plans)
    assert result.description["loss"] == pytest.approx(wanted, rel=1e-4, abs=1e-12)


def test_what_is_asked_of_a_cache_stays_within_a_budget(llama: ModelSource, tmp_path: Path) -> None:
    result, _ = packed(llama, tmp_path, {"past_key_0": "float16"}, feeds(4), "35%cache")
    assert result.description is not None
    key, value = result.description["caches"]
    assert key["form"] == "float16"
    assert value["bytes"] <= 2560 * 0.35 - 640
    with pytest.raises(UsageError, match="'int8' for all caches, and the budget 35%cache would choose"):
        packed(llama, tmp_path / "other", "int8", feeds(4), "35%cache")


def test_budgets_that_cannot_be_kept_are_refused(llama: ModelSource, tmp_path: Path) -> None:
    text = "allows the caches 256 bytes at 10 tokens, and the narrowest formats take 360"
    with pytest.raises(Infeasible, match=text) as caught:
        packed(llama, tmp_path / "a", "float", feeds(4), "10%cache")
    assert caught.value.smallest == 360
    with pytest.raises(UsageError, match="no calibration sample has anything cached"):
        packed(llama, tmp_path / "b", "float", feeds(4, past=0), "30%cache")


@pytest.mark.slow
def test_a_decoder_compiles_with_packed_caches(llama: ModelSource, tmp_path: Path) -> None:
    """What unpacks and packs stays in float, and says nothing in the file."""
    artifact = compiled(llama.path, feeds(8), tmp_path, ["60%", "17%cache"], bits=(7,))
    manifest, file = artifact.manifest, onnx.load(artifact.path)
    names = [value.name for value in file.graph.output]
    forms = {cache["name"]: from_json(cache) for cache in manifest["caches"]["caches"]}
    inputs = [name for cache in manifest["caches"]["caches"] for name in cache["inputs"]]
    assert names[1:] == [name.replace("past", "present") for name in inputs]
    assert not any(node.metadata_props for node in file.graph.node)
    assert any(note["message"].startswith("2 caches are packed") for note in manifest["notes"])
    judged = {output["name"]: output["judged_as"] for output in manifest["results"]["outputs"]}
    assert not any(name.endswith((".scale", ".exponent")) for name in judged)
    for cache in manifest["caches"]["caches"]:
        present = cache["name"].replace("past", "present")
        assert judged[present].startswith("state" if cache["form"] == "float" else f"{cache['form']} cache, unpacked")
    values = packed_feeds(feeds(1)[0], forms)
    result = artifact.run(values)
    for name in inputs:
        assert np.array_equal(result[name.replace("past", "present")][:, :, :9], values[name])
    assert sum(result[name.replace("past", "present")].nbytes for name in inputs) == manifest["caches"]["bytes"]
    assert "caches      2,560 -> " in artifact.summary()
    compared = ptqc.compare(llama.path, artifact.folder, data=feeds(3)).models[1]
    assert [output.name for output in compared.outputs][1:] == [f"present_{kind}_0" for kind in ("key", "value")]
    assert ptqc.compare(llama.path, artifact.folder).samples.endswith(f"golden samples of {artifact.folder}")
    scored = ptqc.evaluate(llama.path, artifact.folder, metric="cosine", data=feeds(3)).models
    assert [row.score.value for row in scored] == [pytest.approx(1.0), pytest.approx(1.0, abs=0.2)]
    assert 'id="caches"' in (artifact.folder / "report.html").read_text()
    assert "is the one that was compiled" in ptqc.verify(artifact.folder, model=llama.path).checks["model"]
    with quick():
        again = ptqc.resolve(artifact.folder, output=tmp_path / "again", cache=tmp_path / "cache", budget="60%")
    assert again.path.read_bytes() == artifact.path.read_bytes()
    assert again.manifest["caches"] == manifest["caches"]
    with pytest.raises(UsageError, match="the budget 17%cache changes what is measured: give it to `ptqc compile`"):
        ptqc.resolve(artifact.folder, output=tmp_path / "other", cache=tmp_path / "cache", budget="17%cache")
