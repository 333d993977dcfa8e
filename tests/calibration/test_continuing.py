"""Of half the texts a decoder has the beginning in its cache: as it would have it in use."""

import re
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse

from ptqc.calibration.continuing import Continuation, continued
from ptqc.calibration.inputs import input_specs
from ptqc.calibration.samples import collect
from ptqc.calibration.sources import spread
from ptqc.calibration.synthetic import draw
from ptqc.execution.onnxruntime import Feeds, Runner

TOKENS, ROWS, CHANNELS = 32, 40, 4
# One layer of attention: a token adds its key to those that are cached, and looks at all that the mask lets it see.
DECODER = """g (int64[N,T] ids, int64[N,S] attention_mask, int64[N,T] position_ids, float[N,1,P,4] past_key) =>
    (float[N,1,T,4] y, float[N,1,S,4] present_key) {
    e = Gather(words, ids) p = Gather(places, position_ids) s = Add(e, p) k = Unsqueeze(s, one)
    present_key = Concat <axis = 2> (past_key, k)
    t = Transpose <perm = [0, 1, 3, 2]> (present_key) a = MatMul(k, t)
    m = Cast <to = 1> (attention_mask) u = Unsqueeze(m, middle) z = Log(u) b = Add(a, z)
    w = Softmax(b) y = MatMul(w, present_key)
}"""
# The same two files in one, as optimum merges them: the branch without a cache does not read it.
MERGED = """g (int64[N,T] ids, float[N,1,P,4] past_key, bool[1] use_cache_branch) =>
    (float[N,1,T,4] y, float[N,1,S,4] present_key) {
    y, present_key = If(use_cache_branch) <
        then_branch = cached () => (float[N,1,T,4] a, float[N,1,S,4] c) {
            d = Gather(words, ids) e = Unsqueeze(d, one) c = Concat <axis = 2> (past_key, e) a = Neg(e)
        },
        else_branch = first () => (float[N,1,T,4] b, float[N,1,S,4] f) {
            h = Gather(words, ids) f = Unsqueeze(h, one) b = Neg(f)
        }>
}"""


def decoder(graph: str = DECODER) -> ir.Model:
    constants = {
        "words": noise(ROWS, CHANNELS),
        "places": noise(64, CHANNELS, seed=1),
        "one": np.array([1]),
        "middle": np.array([1, 2]),
    }
    return parse(graph, **{name: array for name, array in constants.items() if re.search(rf"\b{name}\b", graph)})


def samples_of(model: ir.Model, count: int = 8) -> list[Feeds]:
    return list(draw(model, count, 0, {}))


def made(model: ir.Model, samples: list[Feeds]) -> list[Feeds]:
    result = continued(model, samples)
    assert result is not None
    return list(result)


def test_half_of_a_text_or_its_last_token_goes_on_from_a_cache() -> None:
    result = made(decoder(), samples_of(decoder()))
    assert [feeds["ids"].shape[1] for feeds in result] == [1, 32, 32, 16, 32, 16, 1, 32]
    assert [feeds["past_key"].shape[2] for feeds in result] == [31, 0, 0, 16, 0, 16, 31, 0]
    assert {feeds["attention_mask"].shape[1] for feeds in result} == {TOKENS}
    assert result[3]["position_ids"].tolist() == [list(range(16, 32))]


@pytest.mark.parametrize("most", [8, 32])
@pytest.mark.parametrize("count", range(64, 1025, 32))
def test_spread_samples_are_of_both_kinds(count: int, most: int) -> None:
    way, feeds = Continuation.of(decoder()), samples_of(decoder(), 1)[0]
    assert way is not None
    continues = np.array([way.count(feeds, turn) > 0 for turn in range(count)])
    assert np.sum(continues) == count // 2
    assert 0 < np.mean(continues[spread(count, most)]) < 1


def test_what_the_rest_gives_is_what_the_whole_text_gives() -> None:
    model, samples = decoder(), samples_of(decoder())
    runner = Runner(model)
    for whole, part in zip(samples, made(model, samples), strict=True):
        wanted, result = runner.run(whole), runner.run(part)
        np.testing.assert_allclose(wanted["y"][:, :, -part["ids"].shape[1] :], result["y"], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(wanted["present_key"], result["present_key"])


def test_the_model_takes_them(tmp_path: Path) -> None:
    model = decoder()
    assert len(collect(iter(made(model, samples_of(model))), input_specs(model), tmp_path, 8)) == 8


def test_a_flag_says_whether_the_cache_is_read() -> None:
    model = decoder(MERGED)
    assert input_specs(model)[0].rows == ROWS
    samples = samples_of(model)
    assert not any(feeds["use_cache_branch"].any() for feeds in samples)
    result = made(model, samples)
    assert [bool(feeds["use_cache_branch"][0]) for feeds in result] == [
        True,
        False,
        False,
        True,
        False,
        True,
        True,
        False,
    ]
    assert [feeds["past_key"].shape[2] for feeds in result[:4]] == [31, 0, 0, 16]


def test_a_padded_text_stays_whole() -> None:
    samples = samples_of(decoder())
    samples[3]["attention_mask"][:, :20] = 0
    assert [feeds["past_key"].shape[2] for feeds in made(decoder(), samples)] == [31, 0, 0, 0, 0, 16, 31, 0]


@pytest.mark.parametrize(
    "graph",
    [
        DECODER.replace("int64[N,T] ids", "int64[N,1] ids"),
        DECODER.replace("[N,1,P,4] past_key", "[N,1,8,4] past_key"),
        DECODER.replace("present_key", "keys"),
        "g (int64[N,T] ids) => (float[N,T,4] y) { y = Gather(words, ids) }",
    ],
    ids=["one token in a run", "a cache of fixed size", "a cache that nothing continues", "no cache"],
)
def test_other_models_get_their_samples_as_they_are(graph: str) -> None:
    model = decoder(graph)
    assert continued(model, samples_of(model)) is None
