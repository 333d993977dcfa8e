"""Random numbers and computed sizes become inputs, and what is released computes them again."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from compiling import proto
from graphs import noise
from voices import sentences, voice

from ptqc.errors import ModelError
from ptqc.execution.onnxruntime import Runner
from ptqc.ir import recorded

NOISY = """g (float[N,6] x) => (float[N,4] y) {
    d = RandomNormalLike(x)
    e = RandomUniform<shape=[6]>()
    s = Add(x, d)
    t = Add(s, e)
    y = MatMul(t, w)
}"""


def noisy(opset: int = 18) -> onnx.ModelProto:
    return proto(NOISY, opset, w=noise(6, 4))


def test_what_is_drawn_is_read_from_inputs() -> None:
    model = noisy()
    result = recorded.record(model)
    assert result == {"d.recorded": "RandomNormalLike", "e.recorded": "RandomUniform"}
    onnx.checker.check_model(model, full_check=True)
    x, d, e = noise(3, 6), noise(3, 6, seed=1), noise(6, seed=2)
    y = Runner(model).run({"x": x, "d.recorded": d, "e.recorded": e})["y"]
    np.testing.assert_allclose(y, (x + d + e) @ noise(6, 4), rtol=1e-5, atol=1e-5)
    declared = {value.name: value.type.tensor_type.shape.dim[0] for value in model.graph.input}
    assert declared["d.recorded"].dim_param == "N"
    assert declared["e.recorded"].dim_value == 6


def test_released_models_draw_again() -> None:
    proto_ = noisy()
    result = recorded.record(proto_)
    model = ir.from_proto(proto_)
    recorded.remember(model, result)
    assert recorded.sources(model) == {"d.recorded": "d", "e.recorded": "e"}
    free = recorded.released(model)
    assert [node.op_type for node in free.graph] == [node.op_type for node in noisy().graph.node]
    assert [value.name for value in free.graph.inputs] == ["x"]
    assert recorded.remembered(free) == {}
    assert recorded.remembered(model) == result
    x = noise(3, 6)
    values = Runner(free, ["d", "e"]).run({"x": x})
    again = Runner(model).run({"x": x, "d.recorded": values["d"], "e.recorded": values["e"]})
    np.testing.assert_allclose(again["y"], values["y"], rtol=1e-5, atol=1e-5)


def test_released_files_read_inputs_again() -> None:
    model = noisy()
    result = recorded.record(model)
    file, values = recorded.release(model, result)
    assert values == {"d.recorded": "d", "e.recorded": "e"}
    assert [node.op_type for node in file.graph.node] == [node.op_type for node in noisy().graph.node]
    feeds = {"x": noise(3, 6), "d.recorded": noise(3, 6, seed=1), "e.recorded": noise(6, seed=2)}
    one, other = (Runner(each).run(feeds)["y"] for each in (model, recorded.with_inputs(file, values)))
    np.testing.assert_array_equal(one, other)


def test_what_another_type_is_computed_in_is_released_too() -> None:
    """float32 inside, as models of float16 are computed."""
    model = proto(
        "g (float16[N,6] x, float16[N,6] d_recorded) => (float[N,6] y) { f = Cast<to=1>(x) "
        "c = Cast<to=1>(d_recorded) e = RandomNormalLike(f) d = CastLike(c, e) y = Add(f, d) }"
    )
    result = {"d_recorded": "RandomNormalLike"}
    file, values = recorded.release(model, result)
    assert values == {"d_recorded": "d"}
    assert [node.op_type for node in file.graph.node] == ["Cast", "RandomNormalLike", "Add"]
    ir_model = ir.from_proto(model)
    recorded.remember(ir_model, result)
    free = recorded.released(ir_model)
    assert [node.op_type for node in free.graph] == ["Cast", "RandomNormalLike", "Add"]
    x = noise(2, 6).astype(np.float16)
    for each in (file, free):
        assert Runner(each).run({"x": x})["y"].std() > 0


def test_a_drawn_output_keeps_its_name() -> None:
    model = proto("g (float[N,6] x) => (float[N,6] y) { y = RandomNormalLike(x) }")
    result = recorded.record(model)
    file, _ = recorded.release(model, result)
    assert [value.name for value in file.graph.output] == ["y"]
    assert Runner(file).run({"x": noise(2, 6)})["y"].shape == (2, 6)


def test_a_length_that_layers_compute_is_read_from_an_input() -> None:
    model = voice()
    result = recorded.record(model)
    assert result == {
        "drawn_w.recorded": "RandomNormalLike",
        "drawn.recorded": "RandomNormalLike",
        "total.recorded": "Cast",
    }
    (feeds,) = sentences(1)
    feeds |= {"drawn_w.recorded": noise(1, 2, feeds["input"].size), "drawn.recorded": noise(1, 8, 31)}
    assert Runner(model).run({**feeds, "total.recorded": np.array(31)})["output"].shape == (1, 1, 31 * 16)


@pytest.mark.parametrize(
    "nodes",
    [
        # The size of an input, rounded in float as exporters do.
        "s = Shape(x) f = Cast<to=1>(s) h = Mul(f, half) r = Floor(h) i = Cast<to=7>(r) y = Expand(w, i)",
        # What layers compute is rounded, and says how large nothing is.
        "m = MatMul(x, w) r = Round(m) i = Cast<to=7>(r) y = Cast<to=1>(i)",
        # An input says how large something is.
        "i = Cast<to=7>(n) y = Expand(w, i)",
    ],
)
def test_other_sizes_and_roundings_are_left_alone(nodes: str) -> None:
    graph = f"g (float[2,6] x, float[2] n) => (float[A,B] y) {{ {nodes} }}"
    model = proto(graph, w=noise(6, 6), half=np.float32(0.5))
    before = model.SerializeToString()
    assert recorded.record(model) == {}
    assert model.SerializeToString() == before


def test_draws_of_old_opsets_are_refused_with_a_remedy() -> None:
    with pytest.raises(ModelError, match="'d' needs opset 15 or more here, and the model has 13: export it with opset"):
        recorded.record(noisy(13))


def test_libraries_read_draws_and_compute_lengths() -> None:
    proto_ = voice()
    result = recorded.record(proto_)
    model = ir.from_proto(proto_)
    recorded.remember(model, result)
    fed = recorded.with_draws_fed(model)
    assert [str(value.name) for value in fed.graph.inputs][3:] == ["drawn_w.recorded", "drawn.recorded"]
    assert not {node.op_type for node in fed.graph} & {"RandomNormalLike", "CastLike"}
    (feeds,) = sentences(1)
    free = recorded.released(model)
    values = Runner(free, ["drawn_w", "drawn"]).run(feeds)
    draws = {f"{name}.recorded": values[name] for name in ("drawn_w", "drawn")}
    np.testing.assert_allclose(Runner(fed).run({**feeds, **draws})["output"], values["output"], atol=1e-5)
    plain = ir.from_proto(proto("g (float[N,4] x) => (float[N,4] y) { y = Neg(x) }"))
    assert recorded.with_draws_fed(plain) is plain


def test_many_draws_and_roundings_are_recorded_in_little_time() -> None:
    count = 3000
    draws = "".join(f"d{i} = RandomNormal <shape = [1]> () " for i in range(count))
    rounded = "".join(f"f{i + 1} = Floor(f{i}) " for i in range(count))
    model = proto(
        f"""g (float[N,6] x) => (float[A] y) {{
            {draws} h = MatMul(x, w) f0 = ReduceMax <keepdims = 0> (h)
            {rounded} i = Cast <to = 7> (f{count}) n = Reshape(i, one) y = Expand(d0, n)
        }}""",
        w=noise(6, 4),
        one=np.array([1]),
    )
    result = recorded.record(model)
    assert [*result] == [*(f"d{i}.recorded" for i in range(count)), "i.recorded"]
    assert [node.op_type for node in model.graph.node[:4]] == ["RandomNormal", "CastLike"] * 2


def test_long_vectors_of_sizes_are_not_followed() -> None:
    """Their numbers would fill all memory."""
    doubled = "".join(f"s{i + 1} = Concat <axis = 0> (s{i}, s{i}) " for i in range(40))
    main = '<ir_version: 8, opset_import: ["": 18, "f": 1]> g (float[N,6] x) => (float[1] d, int64[L] y)'
    inside = f'<domain: "f", opset_import: ["": 18]> long (s0) => (s40) {{ {doubled} }}'
    open_length = f"z = Constant <value_ints = [0]> () s = Shape(x) n = Shape(s) s0 = Slice(s, z, n) {doubled}"
    for body, functions in (
        (f"s0 = Shape(x) {doubled} y = Identity(s40)", ""),
        (f"{open_length} y = Identity(s40)", ""),
        ("s0 = Shape(x) y = f.long(s0)", inside),
    ):
        text = f"{main} {{ d = RandomNormal <shape = [1]> () {body} }} {functions}"
        assert recorded.record(onnx.parser.parse_model(text)) == {"d.recorded": "RandomNormal"}
