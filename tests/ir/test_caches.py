"""Which inputs are caches: by the names that exporters give, where an output of the same kind continues them."""

import onnx_ir as ir
import pytest
from graphs import parse

from ptqc.ir.layers import find_caches

GRAPH = "g (float[N,2,P,4] {past}, float[N,2,T,4] x) => ({kind} {present}) {{ {present} = Concat<axis=2>({past}, x) }}"


def model(past: str, present: str, kind: str = "float[N,2,Q,4]") -> ir.Model:
    return parse(GRAPH.format(past=past, present=present, kind=kind))


@pytest.mark.parametrize(("past", "present"), [("past_key_0", "present_key_0"), ("past_k", "present_k")])
def test_caches_are_found_by_their_names(past: str, present: str) -> None:
    (result,) = find_caches(model(past, present))
    assert (result.name, result.past.name, result.present.name) == (past, past, present)


def test_names_of_exporters_have_points() -> None:
    value = model("past_a", "present_a")
    value.graph.inputs[0].name, value.graph.outputs[0].name = "past_key_values.3.value", "present.3.value"
    assert [cache.present.name for cache in find_caches(value)] == ["present.3.value"]


def test_what_nothing_continues_is_none() -> None:
    assert find_caches(model("past_key_0", "present_key_1")) == []
    assert find_caches(model("memory", "memory_out")) == []
    flat = parse("g (float[N,8] past_state) => (float[N,8] present_state) { present_state = Relu(past_state) }")
    assert find_caches(flat) == []
