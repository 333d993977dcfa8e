from graphs import noise, parse
from rewriting import operators, rewrite

from ptqc.passes.canonicalize.remove_dead import RemoveDead


def test_only_what_the_outputs_need_stays() -> None:
    model = parse("g (float[N] x) => (float[N] y) { a = Neg(x)  b = Add(a, w)  y = Relu(x) }", w=noise(1))
    notes = rewrite(model, RemoveDead(), x=noise(3))
    assert operators(model) == ["Relu"]
    assert not model.graph.initializers
    assert "2 nodes" in notes[0].message
    assert rewrite(model, RemoveDead(), x=noise(3)) == []
