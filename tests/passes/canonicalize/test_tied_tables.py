import numpy as np
import pytest
from graphs import noise, parse
from rewriting import operators, rewrite

from ptqc.ir.layers import find_layers, find_weights
from ptqc.passes.canonicalize.tied_tables import TiedTables

WORDS = np.array([[1, 2, 8], [0, 4, 4]])
HEADS = {
    "h = Transpose <perm = [1, 0]> (t) y = MatMul(e, h)": ("MatMul", 1),
    "h = Transpose(t) y = MatMul(e, h)": ("MatMul", 1),
    "f = Reshape(e, rows) y = Gemm <transB = 1> (f, t)": ("Gemm", 0),
    "f = Reshape(e, rows) h = Transpose(t) y = Gemm(f, h)": ("Gemm", 1),
}
OTHERS = {
    "nothing picks rows": "h = Transpose(t) y = MatMul(x, h)",
    "something else reads it": "e = Gather(t, i) a = Add(t, t) h = Transpose(t) z = MatMul(e, h) y = Add(z, a)",
    "the transpose is read otherwise": "e = Gather(t, i) h = Transpose(t) y = Add(e, h)",
    "it multiplies as it lies": "e = Gather(t, i) y = MatMul(e, t)",
    "nothing multiplies": "y = Gather(t, i)",
}


@pytest.mark.parametrize("head", HEADS)
def test_the_product_with_a_table_is_a_layer_of_its_numbers(head: str) -> None:
    table, constants = noise(9, 4), {"rows": np.array([-1, 4])}
    model = parse(f"g (int64[N, T] i) => (float y) {{ e = Gather(t, i) {head} }}", t=table, **constants)
    (note,) = rewrite(model, TiedTables(), i=WORDS)
    assert "both" in note.message
    assert "Transpose" not in operators(model)
    kind, axis = HEADS[head]
    (layer,) = find_layers(model)
    (weight,) = find_weights(model, [layer])
    assert (layer.op_type, weight.channel_axis, weight.layers, weight.table) == (kind, axis, (layer,), "t")


@pytest.mark.parametrize("case", OTHERS)
def test_what_is_not_tied_stays(case: str) -> None:
    model = parse(f"g (int64[N, T] i, float[2, 4] x) => (float y) {{ {OTHERS[case]} }}", t=noise(4, 4))
    assert rewrite(model, TiedTables(), i=np.resize(WORDS, (2, 4)) % 4, x=noise(2, 4)) == []


def test_two_tables_are_tied_each_for_itself() -> None:
    model = parse(
        """g (int64[N, T] i) => (float y, float z) {
            e = Gather(t, i) f = Gather(u, i)
            a = Transpose(t) b = Transpose(u)
            y = MatMul(e, a) z = MatMul(f, b)
        }""",
        t=noise(9, 4),
        u=noise(9, 4, seed=1),
    )
    assert len(rewrite(model, TiedTables(), i=WORDS)) == 2
    assert [weight.table for weight in find_weights(model, find_layers(model))] == ["t", "u"]
