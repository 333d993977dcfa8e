"""Random decoders with random forms of caches: what is packed passes the check, and comes out as NumPy packs it."""

import numpy as np
import pytest
from mostly_slow import mostly_slow
from random_decoders import CACHES, drawn

from ptqc.execution.onnxruntime import Runner
from ptqc.passes.kv_cache.verify import check_packing


@pytest.mark.parametrize("seed", mostly_slow(range(12), *range(5)))
def test_packing_is_what_the_forms_say(seed: int) -> None:
    made = drawn(seed)
    samples = [made.step(places, seed + places) for places in (1, 17)]
    check_packing(made.before, made.model, made.forms, samples)


@pytest.mark.parametrize("seed", range(3))
def test_several_words_keep_the_bits_of_the_first(seed: int) -> None:
    made = drawn(seed)
    runner, values = Runner(made.model), made.packed(3, seed)
    first = {name: array for name, array in values.items() if name != "x"}
    for word in range(4):
        result = runner.run({**values, "x": made.step(1, word)["x"]})
        values = {name: result[name.replace("past", "present")] for name in first}
        for name, array in first.items():
            assert np.array_equal(values[name][:, :, :3], array)
    assert all(values[name].shape[2] == 7 for name in CACHES)
