"""A model says in which forms it gives its caches, also when it was written and read again."""

import onnx_ir as ir
import pytest
from graphs import noise, parse

from ptqc.kv_cache.known import NAMES, forms_of_outputs
from ptqc.passes.kv_cache.wrap import form_named, pack_caches

GROWING = "g (float[N,2,P,8] past, float[N,2,T,8] x) => (float[N,2,Q,8] present) { present = Concat<axis=2>(past, x) }"
WHOLE = "g (float[N,2,P,8] past, float[N,2,P,8] x) => (float[N,2,P,8] present) { present = Add(past, x) }"


@pytest.mark.parametrize("graph", [GROWING, WHOLE])
@pytest.mark.parametrize("name", NAMES)
def test_forms_of_outputs(name: str, graph: str) -> None:
    model = parse(graph)
    form = form_named(name, [noise(1, 2, 5, 8)])
    assert forms_of_outputs(model) == {}
    pack_caches(model, {"past": form})
    assert forms_of_outputs(model) == {"present": form}
    again = ir.from_proto(ir.to_proto(model))
    assert forms_of_outputs(again) == {"present": form}
