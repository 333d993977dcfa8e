import numpy as np
from graphs import noise, parse
from rewriting import operators

from ptqc.ir import nodes as tools

CHAIN = "g (float[N] x) => (float[N] y) { a = Relu(x)  b = Neg(a)  y = Identity(b) }"


def test_bypass_keeps_the_output_name() -> None:
    model = parse(CHAIN)
    node = model.graph[2]
    assert tools.bypass(node, model.graph[1].outputs[0])
    assert operators(model) == ["Relu", "Neg"]
    assert model.graph[1].outputs[0].name == "y"
    assert model.graph.outputs[0] is model.graph[1].outputs[0]


def test_an_input_cannot_become_an_output() -> None:
    model = parse("g (float[N] x) => (float[N] y) { y = Identity(x) }")
    assert not tools.bypass(model.graph[0], model.graph.inputs[0])
    assert operators(model) == ["Identity"]


def test_one_output_cannot_become_another() -> None:
    model = parse("g (float[N] x) => (float[N] y, float[N] z) { y = Relu(x)  z = Identity(y) }")
    assert not tools.bypass(model.graph[1], model.graph[0].outputs[0])


def test_new_constants_never_take_a_used_name() -> None:
    model = parse(CHAIN)
    names = [tools.add_constant(model, noise(1), hint).name for hint in ("a", "a", "w", "x")]
    assert names == ["a_1", "a_2", "w", "x_1"]


def test_replacing_a_shared_constant_leaves_the_other_user() -> None:
    model = parse("g (float[2] x) => (float[2] y) { a = Add(x, w)  y = Mul(a, w) }", w=noise(2))
    tools.replace_constant(model, model.graph[0], 1, np.zeros(2, np.float32), "w")
    assert sorted(model.graph.initializers) == ["w", "w_1"]
    tools.replace_constant(model, model.graph[1], 1, np.ones(2, np.float32), "w")
    assert "w" not in model.graph.initializers


def test_infer_shapes_forgets_stale_shapes_and_keeps_the_interface() -> None:
    model = parse("g (float[N, 4] x) => (float[M, 3] y) { h = MatMul(x, w)  y = Relu(h) }", w=noise(4, 3))
    model.graph[0].outputs[0].shape = tools.ir.Shape([7, 7])
    tools.infer_shapes(model)
    assert str(model.graph[0].outputs[0].shape) == "[N,3]"
    assert str(model.graph.outputs[0].shape) == "[M,3]"


def test_infer_shapes_tells_sequences_from_tensors() -> None:
    model = parse(
        """g (float[N, 4] x) => (float[M] y) {
            h = MatMul(x, w)
            q = SplitToSequence <axis = 1> (h, sizes)
            s = SequenceAt(q, zero)
            y = Relu(s)
        }""",
        w=noise(4, 6),
        sizes=np.array([3, 3]),
        zero=np.array(0),
    )
    model.graph[0].outputs[0].shape = tools.ir.Shape([7, 7])
    tools.infer_shapes(model)
    h, q, s = (node.outputs[0] for node in list(model.graph)[:3])
    assert (str(h.shape), str(h.type)) == ("[N,6]", "FLOAT")
    assert (q.shape, str(q.type)) == (None, "Sequence(Tensor(FLOAT))")
    assert (str(s.shape), str(s.type)) == ("[N,3]", "FLOAT")


def test_remove_dead_reaches_into_subgraphs() -> None:
    model = parse("""g (float[N] x, bool c) => (float[N] y) {
        unused = Neg(x)
        y = If(c) <then_branch = t () => (float[N] a) { a = Neg(x)  dead = Abs(x) },
                   else_branch = e () => (float[N] b) { b = Abs(x) }>
    }""")
    assert tools.remove_dead(model)
    assert [node.op_type for node in model.graph.all_nodes()] == ["If", "Neg", "Abs"]
    assert not tools.remove_dead(model)
