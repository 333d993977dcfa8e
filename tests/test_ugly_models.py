"""Ugly model files through the whole command: each is refused in one line or compiled, and no file is touched.

What `tests/frontend` refuses is not repeated here.
"""

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from compiling import compiled, proto, quick, weight
from mostly_slow import mostly_slow
from onnx import TensorProto, helper

from ptqc.cli import main as cli
from ptqc.execution import onnxruntime
from ptqc.execution.onnxruntime import Runner

HUGE = 1 << 40
Build = Callable[[], onnx.ModelProto]


def text(body: str, x: str = "float[N,4] x", y: str = "float[N,4] y", imports: str = '"": 17', more: str = "") -> Build:
    """A model in ONNX's text form."""
    return lambda: onnx.parser.parse_model(
        f"<ir_version: 8, opset_import: [{imports}]> g ({x}) => ({y}) {{ {body} }} {more}"
    )


def layer(**changes: np.ndarray) -> onnx.ModelProto:
    return proto("g (float[N,8] x) => (float[N,8] y) { y = Gemm(x, w) }", **{"w": weight(8, 8), **changes})


def convolution(attributes: str, *shape: int) -> Build:
    graph = f"g (float[N,3,8,8] x) => (float[N,C,H,W] y) {{ y = Conv<{attributes}>(x, w) }}"
    return lambda: proto(graph, w=np.ones(shape, np.float32))


def attribute_twice() -> onnx.ModelProto:
    model = convolution("strides=[2,2]", 4, 3, 1, 1)()
    model.graph.node[0].attribute.append(helper.make_attribute("strides", [1, 1]))
    return model


def attribute_of_another_type() -> onnx.ModelProto:
    model = convolution("group=1", 4, 3, 1, 1)()
    model.graph.node[0].attribute.append(helper.make_attribute("strides", "two"))
    return model


def without(field: str) -> Build:
    def build() -> onnx.ModelProto:
        model = text("y = Relu(x)")()
        value = model.graph.input[0]
        (value if field == "type" else value.type.tensor_type).ClearField(field)
        return model

    return build


def inner_type(number: int, *shape: int) -> Build:
    """A value of the graph that is declared as something it is not."""

    def build() -> onnx.ModelProto:
        model = text("h = Relu(x) y = Neg(h)")()
        model.graph.value_info.append(helper.make_tensor_value_info("h", number, shape))
        return model

    return build


def interface_type(number: int) -> Build:
    def build() -> onnx.ModelProto:
        model = text("y = Relu(x)")()
        model.graph.input[0].type.tensor_type.elem_type = number
        return model

    return build


def deep_functions() -> onnx.ModelProto:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    model = text("y = f.f0(x)", imports='"": 17, "f": 1')()
    for number in range(3000):
        name, domain = ("Relu", "") if number == 2999 else (f"f{number + 1}", "f")
        node = helper.make_node(name, ["x"], ["y"], domain=domain)
        model.functions.append(helper.make_function("f", f"f{number}", ["x"], ["y"], [node], imports))
    return model


SUM = "s = ReduceSum<keepdims=0>(a) y = Add(x, s)"
BRANCHES = (
    "then_branch = t () => (float[N,4] b) {{ {} b = Add(x, s) }}, else_branch = e () => (float[N,4] o) {{ o = Abs(x) }}"
)
BOMB = f"n = Constant<value = int64[1] {{{HUGE}}}>() a = ConstantOfShape(n) s = ReduceSum<keepdims=0>(a)"

REFUSED: dict[str, tuple[Build, str]] = {
    "deep functions": (deep_functions, "nests 3000 calls"),
    "bomb behind a Constant": (text(f"{BOMB} y = Add(x, s)"), f"{HUGE:,} elements"),
    "bomb in a branch": (
        text(f"c = Constant<value = bool {{1}}>() y = If(c) <{BRANCHES.format(BOMB)}>"),
        f"{HUGE:,} elements",
    ),
    "bomb in a function": (
        text(
            "y = f.f(x)",
            imports='"": 17, "f": 1',
            more=f'<domain: "f", opset_import: ["": 17]> f (x) => (y) {{ {BOMB} y = Add(x, s) }}',
        ),
        "cannot run the model",
    ),
    "bomb of a computed size": (
        text(f"n = Constant<value = int64[1] {{1048576}}>() m = Mul(n, n) a = ConstantOfShape(m) {SUM}"),
        "cannot run the model",
    ),
    "two expansions": (
        text(
            f"n = Constant<value_ints = [1048576,1,1]>() m = Constant<value_ints = [1,1048576,1]>() "
            f"b = Expand(x, n) a = Expand(b, m) {SUM}"
        ),
        "elements",
    ),
    "one-hot bomb": (
        text(
            f"d = Constant<value = int64 {{{HUGE}}}>() v = Constant<value = float[2] {{0,1}}>() "
            f"i = Cast<to=7>(x) a = OneHot(i, d, v) {SUM}"
        ),
        "elements",
    ),
    "resize bomb": (
        text(
            "f = Constant<value_floats = [1.0,1.0,1048576.0,1048576.0]>() "
            "a = Resize(x, , f) y = ReduceSum<keepdims=0>(a)",
            "float[1,1,8,8] x",
            "float y",
        ),
        "elements",
    ),
    "padding bomb": (text(f"p = Constant<value = int64[4] {{{HUGE},0,{HUGE},0}}>() a = Pad(x, p) {SUM}"), "cannot run"),
    "convolution of huge pads": (convolution("pads=[1000000,1000000,1000000,1000000]", 4, 3, 1, 1), "elements"),
    "negative padding": (text(f"p = Constant<value = int64[4] {{0,-9,0,-9}}>() a = Pad(x, p) {SUM}"), "cannot run"),
    "range without a step": (
        text(f"z = Constant<value = int64 {{0}}>() r = Range(z, z, z) a = Cast<to=1>(r) {SUM}"),
        "delta in Range",
    ),
    "negative repeats": (text(f"n = Constant<value = int64[2] {{-1,1}}>() a = Tile(x, n) {SUM}"), "negative"),
    "two free dimensions": (text("n = Constant<value = int64[2] {-1,-1}>() y = Reshape(x, n)"), "multiple -1"),
    "groups that do not divide": (convolution("group=7", 4, 3, 1, 1), "group"),
    "negative strides": (convolution("strides=[0,-1]", 4, 3, 1, 1), "positive values"),
    "no output channels": (convolution("group=1", 0, 3, 1, 1), "weight 'w' has no elements"),
    "pool over nothing": (
        text("y = MaxPool<kernel_shape=[0,0]>(x)", "float[N,1,8,8] x", "float[N,1,A,B] y"),
        "kernel_shape",
    ),
    "attribute twice": (attribute_twice, "'strides' twice"),
    "attribute of another type": (attribute_of_another_type, "Mismatched attribute type"),
    "input as output": (text("z = Relu(x)", y="float[N,4] x"), "'x' is an input or a constant"),
    "constant as output": (
        lambda: proto("g (float[N] x) => (float[N] y, float[2] w) { y = Relu(x) }", w=np.ones(2, np.float32)),
        "'w' is an input or a constant",
    ),
    "no inputs": (text("a = Constant<value = float[2] {1,2}>() y = Neg(a)", "", "float[2] y"), "no inputs"),
    "no type": (without("type"), "'type'"),
    "no rank": (without("shape"), "'shape'"),
    "unknown type": (interface_type(77), "'x' has the unknown type 77"),
    "bfloat16 input": (interface_type(TensorProto.BFLOAT16), "'x' is bfloat16"),
    "string input": (interface_type(TensorProto.STRING), "no samples can be generated for this type"),
    "inner value of another type": (inner_type(TensorProto.INT64, 1, 4), "does not match expected type"),
    "weights too large to be squared": (lambda: layer(w=np.full((8, 8), 3e7, np.float32)), "weight 'w' reaches 3e+07"),
    "inputs too large to be squared": (
        lambda: proto(
            "g (float[N,8] x) => (float[N,8] y) { h = Mul(x, s) y = Gemm(h, w) }",
            w=weight(8, 8),
            s=np.array([1e14], np.float32),
        ),
        "layer input 'h' reaches",
    ),
    "free axis": (text("y = Relu(x)", "float[N,-2] x", "float[N,4] y"), "axis 1 of (N, x_1) has no size"),
    "NaN into a layer": (
        lambda: proto(
            "g (float[N,8] x) => (float[N,8] y) "
            "{ z = Sub(x, x) h = Div(z, z) g = Gemm(h, w) n = IsNaN(g) y = Where(n, x, g) }",
            w=weight(8, 8),
        ),
        "layer input 'h' is NaN or infinite",
    ),
    "weights that overflow": (
        lambda: layer(w=np.full((8, 8), 3e38, np.float32)),
        "'y' of the float model is NaN or infinite",
    ),
    "0 / 0": (text("z = Sub(x, x) y = Div(z, z)"), "'y' of the float model is NaN or infinite"),
    "1 / 0": (text("z = Sub(x, x) y = Reciprocal(z)"), "'y' of the float model is NaN or infinite"),
    "training": (
        text("r = Constant<value = float {0.5}>() t = Constant<value = bool {1}>() y = Dropout(x, r, t)"),
        "training mode",
    ),
    "random numbers in a branch": (
        text(
            "t = ReduceSum<keepdims=0>(x) z = Constant<value = float {0}>() c = Less(t, z) "
            "y = If(c) <then_branch = t1 () => (float[N,8] a) { a = RandomUniformLike(x) }, "
            "else_branch = e1 () => (float[N,8] b) { b = Neg(x) }>"
        ),
        "RandomUniformLike node that gives 'a' draws",
    ),
    "random numbers of an old opset": (
        text("r = RandomUniformLike(x) y = Add(x, r)", imports='"": 13'),
        "RandomUniformLike node that gives 'r' needs opset 15",
    ),
    "random numbers in a function": (
        text(
            "y = f.f(x)",
            imports='"": 17, "f": 1',
            more='<domain: "f", opset_import: ["": 17]> f (x) => (y) { y = Bernoulli(x) }',
        ),
        "Bernoulli node that gives 'y' draws",
    ),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def compile_here(*more: str) -> int:
    arguments = ["compile", "m.onnx", "--calibration", "synthetic", "--samples", "4", "-o", "out", "--cache", "cache"]
    with quick():
        return cli.main([*arguments, *more, "--quiet"])


def assert_refused(folder: Path, capsys: pytest.CaptureFixture[str], part: str) -> None:
    before = {path.name for path in folder.iterdir()}
    code = compile_here()
    message = capsys.readouterr().err
    assert code == 2, message
    assert part in message
    assert message.startswith("ptqc: ")
    assert message.count("\n") == 1, message
    assert {path.name for path in folder.iterdir()} - {"cache"} == before


@pytest.mark.parametrize(("build", "part"), REFUSED.values(), ids=[name.replace(" ", "-") for name in REFUSED])
def test_it_is_refused_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str], build: Build, part: str) -> None:
    (folder / "m.onnx").write_bytes(build().SerializeToString())
    assert_refused(folder, capsys, part)


def test_a_loop_without_end_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "<body = b (int64 i, bool d, float[N,4] s) => (bool e, float[N,4] t) { e = Identity(d) t = Identity(s) }>"
    most = f"m = Constant<value = int64 {{{(1 << 63) - 1}}}>() c = Constant<value = bool {{1}}>()"
    (folder / "m.onnx").write_bytes(text(f"{most} y = Loop(m, c, x) {body}")().SerializeToString())
    monkeypatch.setattr(onnxruntime, "LOOP_LIMIT", 0.5)
    assert_refused(folder, capsys, "a Loop of the model may have no end")


def nested(depth: int) -> bytes:
    """A model with an If in an If in an If …, written as bytes: no library writes one so deep."""
    field = lambda number, content: bytes([number << 3 | 2]) + _varint(len(content)) + content  # noqa: E731
    graph = b""
    for _ in range(depth):
        attribute = field(1, b"then_branch") + field(6, graph) + b"\xa0\x01\x05"
        graph = field(1, field(1, b"c") + field(2, b"y") + field(4, b"If") + field(5, attribute))
    return b"\x08\x08" + field(7, graph) + field(8, b"\x10\x11")


def _varint(number: int) -> bytes:
    result = b""
    while number > 127:
        result, number = result + bytes([number & 127 | 128]), number >> 7
    return result + bytes([number])


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (nested(40), "nests subgraphs beyond 31 levels"),
        (nested(2000), "nests subgraphs beyond 31 levels"),
        (b"\x89HDF\r\n\x1a\nrest", "Keras"),
        (b"\x1c\0\0\0ORTMrest", ".ort file"),
        (b"\0" * 64, "not an ONNX model"),
        (os.urandom(4096), "m.onnx"),
    ],
    ids=["40 branches", "2000 branches", "Keras", "ort", "zeros", "noise"],
)
def test_bytes_that_are_no_model(folder: Path, capsys: pytest.CaptureFixture[str], content: bytes, part: str) -> None:
    (folder / "m.onnx").write_bytes(content)
    assert_refused(folder, capsys, part)


def test_a_pipe_is_not_waited_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(folder / "m.onnx")
    assert_refused(folder, capsys, "not a regular file")


@pytest.mark.parametrize("target", ["pipe", "/dev/zero", "m.onnx/..", "nowhere"])
def test_external_data_is_a_regular_file(folder: Path, capsys: pytest.CaptureFixture[str], target: str) -> None:
    model = layer()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    os.mkfifo(folder / "pipe")
    (folder / "w.bin").symlink_to(target)
    assert_refused(folder, capsys, "external data at 'w.bin'")


def same_node_names() -> onnx.ModelProto:
    model = text("h = Relu(x) y = Neg(h)")()
    for node in model.graph.node:
        node.name = "same"
    return model


def odd_names() -> onnx.ModelProto:
    """A layer between values whose names are paths, markup and control characters."""
    model = text("a = Relu(x) b = Neg(a) c = Abs(b) d = Add(c, a) y = Tanh(d)")()
    odd = {"a": "../../a", "b": "new\nline", "c": "\u202e</script><b>", "d": "/d" * 900, "x": "../x", "y": "out/\ny"}
    for node in model.graph.node:
        node.input[:] = [odd.get(name, name) for name in node.input]
        node.output[:] = [odd.get(name, name) for name in node.output]
    model.graph.input[0].name, model.graph.output[0].name = odd["x"], odd["y"]
    return model


def chain(length: int) -> Build:
    names = ["x", *(f"v{number}" for number in range(length)), "y"]
    return text(" ".join(f"{b} = Relu({a})" for a, b in pairwise(names)))


ACCEPTED: dict[str, Build] = {
    "same node names": same_node_names,
    "odd names": odd_names,
    "wrong inner shape": inner_type(TensorProto.FLOAT, 9, 9),
    "wrong output shape": text("y = Relu(x)", y="float[N,5] y"),
    "float16": text("y = Relu(x)", "float16[N,4] x", "float16[N,4] y"),
    "scalars": text("y = Neg(x)", "float x", "float y"),
    "only an identity": text("y = Identity(x)"),
    "free batch": text("y = Relu(x)", "float[-1,4] x", "float[0,4] y"),
    "zero weights": lambda: layer(w=np.zeros((8, 8), np.float32)),
    "denormal weights": lambda: layer(w=np.full((8, 8), 1e-42, np.float32)),
    "infinite mask": lambda: proto(
        "g (float[N,8] x) => (float[N,8] y) { h = Add(x, w) y = Softmax(h) }", w=np.array([0, -np.inf] * 4, np.float32)
    ),
    "NaN inside": text("z = Sub(x, x) q = Div(z, z) n = IsNaN(q) y = Where(n, x, q)"),
    "a sequence inside": text("s = SequenceConstruct(x, x) i = Constant<value = int64 {0}>() y = SequenceAt(s, i)"),
    "a product cut into a sequence": lambda: proto(
        """g (float[N,8] x) => (float[N,4] y) {
            h = MatMul(x, w)
            q = SplitToSequence<axis = 1>(h, halves)
            s = SequenceAt(q, zero)
            y = Relu(s)
        }""",
        w=weight(8, 8),
        halves=np.array([4, 4]),
        zero=np.array(0),
    ),
    "a branch": text(f"c = Constant<value = bool {{1}}>() y = If(c) <{BRANCHES.format('s = Neg(x)')}>"),
    "an unused input": text("y = Relu(x)", "float[N,4] x, float[N,3] u"),
    "100 nodes in a row": chain(100),
}


PLAIN = ("odd names", "float16", "zero weights", "NaN inside", "a sequence inside", "an unused input")


@pytest.mark.parametrize("name", mostly_slow(ACCEPTED, *PLAIN))
def test_it_is_compiled(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    build = ACCEPTED[name]
    content = build().SerializeToString()
    (folder / "m.onnx").write_bytes(content)
    assert compile_here("--bits", "4") == 0, capsys.readouterr().err
    assert (folder / "m.onnx").read_bytes() == content
    assert {path.name for path in folder.iterdir()} == {"m.onnx", "out", "cache"}
    assert "</script><b>" not in (folder / "out" / "report.html").read_text()
    assert "\u202e" not in (folder / "out" / "report.html").read_text()


PADDED = """g (float[N,6,16] x, bool[N,6] real) => (float[N,6,8] y) {
    k = MatMul(x, wk)
    t = Transpose<perm=[0,2,1]>(x)
    s = MatMul(k, t)
    a = Unsqueeze(real, one)
    b = Unsqueeze(real, two)
    c = And(a, b)
    m = Where(c, s, minus)
    p = Softmax(m)
    o = MatMul(p, x)
    h = MatMul(o, w1)
    r = Relu(h)
    y = MatMul(r, w2)
}"""


def test_rows_at_padding_that_are_nan_are_left_out(tmp_path: Path) -> None:
    """A softmax over nothing but minus infinity is NaN, and stays so up to the output."""
    weights = {"wk": weight(16, 16) / 4, "w1": weight(16, 32, seed=1), "w2": weight(32, 8, seed=2)}
    places = {"one": np.array([1]), "two": np.array([2]), "minus": np.array(-np.inf, np.float32)}
    model, rng = proto(PADDED, **weights, **places), np.random.default_rng(0)
    feeds = [
        {"x": rng.standard_normal((1, 6, 16), np.float32), "real": (np.arange(6) < 3 + i % 4)[None]} for i in range(48)
    ]
    artifact = compiled(model, feeds[:40], tmp_path, bits=(7,))
    real, packed = Runner(model), Runner(artifact.path)
    pairs = [(real.run(one)["y"], packed.run(one)["y"]) for one in feeds[40:]]
    kept = [np.isfinite(a) for a, _ in pairs]
    assert not all(each.all() for each in kept)
    error = sum(np.square(a[k] - b[k]).sum() for (a, b), k in zip(pairs, kept, strict=True))
    assert error < 1e-3 * sum(np.square(a[k]).sum() for (a, _), k in zip(pairs, kept, strict=True))
    assert artifact.manifest["results"]["sqnr_db"] > 25
    notes = {note["subject"]: note["message"] for note in artifact.manifest["notes"] if note["level"] == "warning"}
    assert "rows that layers read are NaN or infinite" in notes["o"]
    assert "no loss was measured there" in notes["y"]
