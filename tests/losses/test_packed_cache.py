"""Packed caches are judged by the values that their parts stand for."""

import numpy as np
import pytest
from graphs import noise, parse

from ptqc.errors import UsageError
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.kv_cache.form import CacheForm, packed_arrays, packed_feeds
from ptqc.kv_cache.known import NAMES
from ptqc.losses import Kinds, from_json, recognize, to_json
from ptqc.losses.packed_cache import PackedCache
from ptqc.losses.state import State
from ptqc.losses.total import OutputLoss
from ptqc.passes.kv_cache.wrap import form_named, pack_caches

DECODER = """g (float[N,2,P,8] past, float[N,2,T,8] x) => (float[N,2,Q,5] logits, float[N,2,Q,8] present) {
    present = Concat<axis = 2>(past, x) logits = MatMul(present, w)
}"""
FEEDS: list[Feeds] = [{"past": noise(1, 2, 6, 8, seed=i), "x": noise(1, 2, 3, 8, seed=10 + i)} for i in range(4)]


def form(name: str) -> CacheForm:
    return form_named(name, [feeds["past"] for feeds in FEEDS])


def judged(name: str) -> tuple[Kinds, list[Feeds]]:
    """Kinds of the decoder's outputs with its cache packed, and what it gives."""
    model, forms = parse(DECODER, w=noise(8, 5)), {"past": form(name)}
    pack_caches(model, forms)
    values = [packed_feeds(feeds, forms) for feeds in FEEDS]
    runner = Runner(model)
    outputs = [runner.run(feeds) for feeds in values]
    return recognize(model, values[0], outputs), outputs


@pytest.mark.parametrize("name", NAMES)
def test_a_cache_is_one_output_whatever_its_parts(name: str) -> None:
    kinds, outputs = judged(name)
    assert set(kinds) == {"logits", "present"}
    assert kinds["present"].describe().startswith(f"{name} cache, unpacked, state for the next run")
    assert from_json(to_json(kinds)) == kinds
    whole = np.concatenate([FEEDS[0]["past"], FEEDS[0]["x"]], 2)
    wanted = form(name).unpack(*form(name).pack(whole))
    np.testing.assert_array_equal(kinds["present"].read("present", outputs[0]), wanted)


@pytest.mark.parametrize("name", NAMES)
def test_its_loss_is_that_of_a_state_with_the_real_values(name: str) -> None:
    kinds, outputs = judged(name)
    measure = OutputLoss.of(kinds, outputs)
    kind = measure.kinds["present"]
    assert isinstance(kind, PackedCache)
    real = [kind.read("present", each) for each in outputs]
    moved = real[0] + noise(*real[0].shape, seed=5, scale=0.5)
    other = {**outputs[0], **packed_arrays("present", moved, form(name))}
    state = State(kind.axis, kind.groups).fitted(real)
    expected = state.losses(real[0], kind.read("present", other))
    assert measure.losses("present", outputs[0], other) == expected
    assert sum(expected.values()) > 0.01
    assert measure.losses("present", outputs[0], outputs[0]) == dict.fromkeys(expected, 0.0)
    assert measure(outputs[0], other) == pytest.approx(measure.rate(kind) * kind.combine(expected))


def test_nothing_else_can_be_asked_to_be_one() -> None:
    model = parse(DECODER, w=noise(8, 5))
    outputs = [Runner(model).run(feeds) for feeds in FEEDS]
    with pytest.raises(UsageError, match="output 'logits' cannot be packed-cache: nothing packs it"):
        recognize(model, FEEDS[0], outputs, {"logits": "packed-cache"})
