"""Networks that take frames: they compute what ONNX Runtime computes of windows, or of all frames so far."""

import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from boards import needs_boards
from compiling import compiled, samples
from graphs import noise, parse
from in_c import HAS_COMPILER, Case, Changed, case, of_model
from lowering import Quantized, quantized
from mostly_slow import mostly_slow

from ptqc.codegen.c import emulation, verify
from ptqc.codegen.c.options import COptions
from ptqc.codegen.onnxruntime.export import export
from ptqc.errors import TargetError, UsageError, VerificationError
from ptqc.execution.onnxruntime import Runner

pytestmark = HAS_COMPILER

# Weights are called by their shapes, such as w_8x5x3, and biases b_8.
SEPARABLE = """g (float[N,5,T] x) => (float[N,4] y) {
    a = Conv (x, w_8x5x3)
    b = Relu(a)
    c = Conv <group = 8> (b, w_8x1x3, b_8)
    d = Conv (c, w_12x8x1)
    e = Relu(d)
    f = Conv <dilations = [2]> (e, w_12x12x3)
    m = GlobalAveragePool(f)
    h = Flatten(m)
    y = Gemm <transB = 1> (h, w_4x12, b_4)
}"""
CAUSAL = """g (float[N,5,T] x) => (float[N,6,T] y) {
    a = Conv <pads = [2, 0]> (x, w_8x5x3, b_8)
    b = Relu(a)
    c = Conv <pads = [4, 0], dilations = [2]> (b, w_8x8x3, b_8)
    d = Relu(c)
    s = Add(d, b)
    e = Conv <pads = [8, 0], dilations = [4]> (s, w_8x8x3)
    f = Relu(e)
    t = Add(f, s)
    y = Conv (t, w_6x8x1)
}"""
# Causal layers of PyTorch: padding on both sides, and what reads that behind is cut off.
CUT = """g (float[N,5,T] x) => (float[N,8,U] y) {
    a = Conv <pads = [4, 4], dilations = [2]> (x, w_8x5x3, b_8)
    b = Slice (a, zero, minus4, two)
    c = Relu(b)
    d = Conv <pads = [3, 3]> (c, w_8x8x4)
    e = Slice (d, zero, minus3, two)
    f = Conv (x, w_8x5x1)
    g = Add(e, f)
    y = Relu(g)
}"""
PADDED = """g (float[N,5,T] x) => (float[N,6,T] y) {
    p = Pad (x, front2)
    a = Conv (p, w_8x5x3, b_8)
    b = Sigmoid(a)
    q = Pad (b, front6)
    c = Conv <dilations = [3]> (q, w_8x8x3, b_8)
    d = Relu(c)
    y = Conv (d, w_6x8x1)
}"""
IMAGE = """g (float[N,1,T,9] x) => (float[N,3] y) {
    a = Conv <pads = [0, 1, 0, 1], strides = [1, 2]> (x, w_6x1x3x3, b_6)
    b = Relu(a)
    c = Conv <group = 6, pads = [0, 1, 0, 1]> (b, w_6x1x4x3, b_6)
    d = Relu(c)
    e = MaxPool <kernel_shape = [2, 2], strides = [1, 2]> (d)
    f = Flatten(e)
    y = Gemm <transB = 1> (f, w_3x132, b_3)
}"""
STRIDED = """g (float[N,4,T] x) => (float[N,3] y) {
    a = Conv <strides = [2]> (x, w_8x4x5, b_8)
    b = Relu(a)
    c = MaxPool <kernel_shape = [3], strides = [2]> (b)
    d = Conv (c, w_8x8x2)
    e = Relu(d)
    f = AveragePool <kernel_shape = [2]> (e)
    m = GlobalAveragePool(f)
    h = Flatten(m)
    y = Gemm <transB = 1> (h, w_3x8, b_3)
}"""
STRIDED_CAUSAL = """g (float[N,4,T] x) => (float[N,3,U] y) {
    a = Conv <strides = [2], pads = [4, 0]> (x, w_8x4x5, b_8)
    b = Relu(a)
    c = MaxPool <kernel_shape = [3], pads = [2, 0]> (b)
    d = Conv <strides = [3], pads = [2, 0]> (c, w_8x8x3)
    e = Relu(d)
    y = Conv (e, w_3x8x1)
}"""
# Branches of different reach: what comes earlier waits. Features in front of time, and a gate of the whole window.
BRANCHES = """g (float[N,T,6] x) => (float[N,12,U] y, float[N,12] z) {
    t = Transpose <perm = [0, 2, 1]> (x)
    a = Conv (t, w_6x6x5, b_6)
    r = Slice (t, one, minus3, two)
    s = Add(a, r)
    u = Sigmoid(s)
    v = Conv (t, w_6x6x2)
    w = Slice (v, three, end, two)
    c = Concat <axis = 1> (u, w)
    y = Relu(c)
    m = GlobalAveragePool(y)
    h = Conv (m, w_12x12x1)
    g = Sigmoid(h)
    p = Mul(y, g)
    z = ReduceMean <keepdims = 0> (p, axes)
}"""
LAST_AXIS = """g (float[N,1,7,T] x) => (float[N,3] y) {
    a = Conv <pads = [1, 0, 1, 0]> (x, w_6x1x3x3, b_6)
    b = Relu(a)
    c = Conv <strides = [7, 2]> (b, w_8x6x7x3)
    d = Relu(c)
    f = Flatten(d)
    y = Gemm <transB = 1> (f, w_3x40, b_3)
}"""
CONSTANTS = {
    "zero": np.array([0]), "one": np.array([1]), "two": np.array([2]), "three": np.array([3]), "end": np.array([9999]),
    "minus3": np.array([-3]), "minus4": np.array([-4]), "axes": np.array([2]),
    "pads": np.array([0, 1, 0, 0, 0, 0]), "minus1": np.array([-1]),
    "front2": np.array([0, 0, 2, 0, 0, 0]), "front6": np.array([0, 0, 6, 0, 0, 0]),
    **{f"begin{count}": np.array([count]) for count in range(13)},
}  # fmt: skip
# Graph, shape of a window, axis of time, and the fewest frames of a call.
WINDOWS: dict[str, tuple[str, tuple[int, ...], int, int]] = {
    "separable": (SEPARABLE, (1, 5, 17), 2, 1),
    "image": (IMAGE, (1, 1, 17, 9), 2, 1),
    "strided": (STRIDED, (1, 4, 37), 2, 4),
    "branches": (BRANCHES, (1, 13, 6), 1, 1),
    "last axis": (LAST_AXIS, (1, 1, 7, 13), 3, 2),
}
HISTORIES: dict[str, tuple[str, tuple[int, ...], int, int]] = {
    "causal": (CAUSAL, (1, 5, 20), 2, 1),
    "padded": (PADDED, (1, 5, 16), 2, 1),
    "cut": (CUT, (1, 5, 14), 2, 1),
    "strided": (STRIDED_CAUSAL, (1, 4, 26), 2, 6),
}


def network(text: str) -> ir.Model:
    names = set(re.findall(r"\b[wb]_[0-9x]+\b", text))
    weights = {name: noise(*map(int, name[2:].split("x")), seed=len(name), scale=0.4) for name in names}
    used = {name: array for name, array in CONSTANTS.items() if re.search(rf"\b{name}\b", text)}
    return parse(text, **weights, **used)


@cache
def built(text: str, shape: tuple[int, ...], axis: int, frames: int | None = None) -> tuple[Case, Quantized]:
    feeds = [{"x": noise(*shape, seed=seed)} for seed in range(3)]
    model = quantized(network(text), feeds)
    return case(model, feeds, options=COptions(c_stream=axis, c_frames=frames)), model


def verified(text: str, shape: tuple[int, ...], axis: int, frames: int | None, folder: Path) -> tuple[Case, Runner]:
    """A network by frames that agrees with the file where the compile compares them, and ONNX Runtime with the file."""
    stream, model = built(text, shape, axis, frames)
    assert stream.compare(folder).different == {}
    return stream, Runner(export(model.lowered, model.model).proto)


def pushed(stream: Case, recording: np.ndarray, axis: int, folder: Path) -> Iterator[dict[str, np.ndarray]]:
    """Outputs of all calls, by their names in the model, as real values."""
    folder.mkdir(exist_ok=True)
    program = verify.compiled(stream.text, folder, ("-O1", *verify.SANITIZERS))
    info = stream.network.stream
    assert info is not None
    calls = [{"x": part} for part in np.split(recording, recording.shape[axis] // info.frames, axis)]
    for trace in verify.run(program, stream.text, calls, {0}):
        outputs = {}
        for at, each in enumerate(stream.text.outputs):
            tensor = each.terminal.tensor
            array = tensor.in_model(trace[-1 - at].view(tensor.dtype))
            if each.terminal.codes:
                scale, zero = each.terminal.codes
                array = (array.astype(np.int32) - zero).astype(np.float32) * np.float32(scale)
            outputs[each.terminal.name] = array
        yield outputs


def recorded(shape: tuple[int, ...], axis: int, frames: int) -> np.ndarray:
    """Three windows of frames, less those that fill no call."""
    whole = np.concatenate([noise(*shape, seed=7 + seed) for seed in range(3)], axis)
    return np.take(whole, range(whole.shape[axis] // frames * frames), axis)


@pytest.mark.parametrize("name", mostly_slow(WINDOWS, "image", "branches"))
@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_windows_give_what_onnx_runtime_computes_of_them(name: str, times: int, tmp_path: Path) -> None:
    text, shape, axis, least = WINDOWS[name]
    frames, compared = times * least, 0
    stream, runner = verified(text, shape, axis, None if times == 1 else frames, tmp_path / "all")
    recording = recorded(shape, axis, frames)
    for call, outputs in enumerate(pushed(stream, recording, axis, tmp_path / "pushed"), 1):
        if call * frames < shape[axis]:
            continue
        window = np.take(recording, range(call * frames - shape[axis], call * frames), axis)
        wanted = runner.run({"x": window})
        for output, array in outputs.items():
            whole = wanted[output]
            if array.shape != whole.shape:  # the last rows of a window
                whole = whole[..., -array.shape[-1] :]
            tolerance = 1e-6 if output == "z" else 0  # a mean of real values
            np.testing.assert_allclose(array, whole, rtol=tolerance, err_msg=f"{output} of call {call}")
        compared += 1
    assert compared > 2 * shape[axis] // frames - 2


@pytest.mark.parametrize("name", mostly_slow(HISTORIES, "cut", "strided"))
@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_padding_in_front_is_that_of_the_first_frame(name: str, times: int, tmp_path: Path) -> None:
    text, shape, axis, least = HISTORIES[name]
    frames = times * least
    stream, runner = verified(text, shape, axis, None if times == 1 else frames, tmp_path / "all")
    recording = recorded(shape, axis, frames)
    parts = [outputs["y"] for outputs in pushed(stream, recording, axis, tmp_path / "pushed")]
    rows = parts[0].shape[-1]
    whole = runner.run({"x": recording})["y"]
    np.testing.assert_array_equal(np.concatenate(parts, -1), whole[..., : rows * len(parts)])
    for call in (1, len(parts) // 2):
        part = runner.run({"x": np.take(recording, range(call * frames), axis)})["y"]
        np.testing.assert_array_equal(parts[call - 1], part[..., (call - 1) * rows : call * rows])


def test_a_call_computes_new_rows_alone() -> None:
    feeds = [{"x": noise(1, 5, 20, seed=seed)} for seed in range(3)]
    frame, window = (of_model(network(CAUSAL), feeds, options=COptions(c_stream=axis)) for axis in (2, None))
    assert frame.network.products * 20 == window.network.products
    assert frame.text.arena.bytes < window.text.arena.bytes / 3
    assert frame.network.state_bytes == 128  # 3 frames of 5, 5 rows of 8 and 9 rows of 8 bytes, each to a multiple of 8


def test_a_mean_of_the_window_is_due_when_it_is_complete() -> None:
    stream, _ = built(SEPARABLE, (1, 5, 17), 2)
    assert stream.network.stream is not None
    assert stream.network.stream.first == 17
    assert "#define PTQC_NET_FIRST 17" in stream.text.header()
    assert built(CAUSAL, (1, 5, 20), 2)[0].network.stream.first == 1  # type: ignore[union-attr]


@needs_boards
def test_boards_give_the_same(tmp_path: Path) -> None:
    for name, (text, shape, axis, _) in (("image", WINDOWS["image"]), ("causal", HISTORIES["causal"])):
        stream, _ = built(text, shape, axis)
        stream.compare(tmp_path / name)
        stream.run_on_boards(tmp_path / name)


@pytest.mark.parametrize("program", ["gcc", "clang"])
@pytest.mark.parametrize("flags", mostly_slow([("-O3",), ("-Os", "-DPTQC_WITHOUT_FPU")], ("-Os", "-DPTQC_WITHOUT_FPU")))
def test_compilers_agree_without_a_warning(program: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    strict = ("-Werror", "-Wshadow", "-Wcast-align", "-Wstrict-prototypes", "-Wundef")
    for name, (text, shape, axis, _) in (("image", WINDOWS["image"]), ("causal", HISTORIES["causal"])):
        stream, _ = built(text, shape, axis)
        assert stream.compare(tmp_path / name, *strict, *flags, program=program).different == {}


FAULTS = [
    (SEPARABLE, (1, 5, 17), "memmove(state, state + added, stay);", ""),
    (SEPARABLE, (1, 5, 17), "memcpy(state + stay, from, added);", "memcpy(state, from, added);"),
    (SEPARABLE, (1, 5, 17), ", 1, 48, 12);", ", 1, 36, 12);"),
    (SEPARABLE, (1, 5, 17), "calls < 17u", "calls < 16u"),
    (CAUSAL, (1, 5, 20), ", 1, 64, 8);", ", 1, 56, 8);"),
    (CAUSAL, (1, 5, 20), "if (!calls) begin();", "if (calls) begin();"),
    (CAUSAL, (1, 5, 20), "calls = 0;", ""),
    (CAUSAL, (1, 5, 20), "memset(STATE(0), 136, 15);", "memset(STATE(0), 0, 15);"),
]


@pytest.mark.parametrize("fault", mostly_slow(FAULTS, *FAULTS[::3]))
def test_faults_are_noticed(fault: tuple[str, tuple[int, ...], str, str], tmp_path: Path) -> None:
    text, shape, old, new = fault
    right, _ = built(text, shape, 2)
    source = right.text
    wrong = Changed(source.name, source.network, source.arena, old=old, new=new)
    with pytest.raises(VerificationError):
        Case(wrong, right.samples, right.values).compare(tmp_path)


def drawn(seed: int) -> tuple[str, tuple[int, ...]]:
    """A random network along time, all layers with padding in front or all without, and the shape of its window."""
    random = np.random.default_rng(seed)
    is_causal, channels, last, lines = bool(random.integers(2)), 4, "x", list[str]()

    def add(call: str) -> str:
        lines.append(f"v{len(lines)} = {call}")
        return f"v{len(lines) - 1}"

    for _ in range(random.integers(2, 5)):
        size, dilation = int(random.integers(1, 5)), int(random.integers(1, 4))
        stride = int(random.choice([1, 1, 1, 2, 3]))
        pads = (size - 1) * dilation if is_causal else 0
        window = f"pads = [{pads}, 0], strides = [{stride}], dilations = [{dilation}]"
        kind = random.choice(["conv", "conv", "depthwise", "pool", "sum", "branches"])
        if kind == "conv":
            wide = int(random.integers(3, 9))
            last = add(f"Conv <{window}> ({last}, w_{wide}x{channels}x{size}, b_{wide})")
            last, channels = add(f"{random.choice(['Relu', 'Sigmoid', 'Tanh'])}({last})"), wide
        elif kind == "depthwise":
            last = add(f"Conv <{window}, group = {channels}> ({last}, w_{channels}x1x{size}, b_{channels})")
        elif kind == "pool":
            pool = f"pads = [{(size - 1) * is_causal}, 0], strides = [{stride}], kernel_shape = [{size}]"
            last = add(f"MaxPool <{pool}> ({last})")
        else:
            other = f"pads = [{pads}, 0], dilations = [{dilation}]"
            one = add(f"Conv <{other}> ({last}, w_{channels}x{channels}x{size})")
            same = last if is_causal else add(f"Slice ({last}, begin{(size - 1) * dilation}, end, two)")
            last = add(f"Add({one}, {same})" if kind == "sum" else f"Concat <axis = 1> ({one}, {same})")
            channels *= 1 if kind == "sum" else 2
    head = random.choice(["rows", "mean", "last"])
    if head == "rows" or is_causal:
        last = add(f"Conv ({last}, w_3x{channels}x1)")
    else:
        last = add(f"GlobalAveragePool({last})" if head == "mean" else f"Slice ({last}, minus1, end, two)")
        last = add(f"Gemm <transB = 1> ({add(f'Flatten({last})')}, w_3x{channels})")
    text = f"g (float[N,4,T] x) => (float y) {{ {' '.join(lines)} y = Identity({last}) }}"
    return text, (1, 4, int(random.integers(120, 150)))


def check_random(seed: int, folder: Path) -> None:
    text, shape = drawn(seed)
    stream, runner = verified(text, shape, 2, None, folder / "all")
    info = stream.network.stream
    assert info is not None
    recording = recorded(shape, 2, info.frames)
    for call, outputs in enumerate(pushed(stream, recording, 2, folder / "pushed"), 1):
        if call < max(info.first, info.calls) or (call % 7 and call > info.calls):
            continue
        begin = 0 if info.is_padded else call * info.frames - shape[2]
        whole, rows = runner.run({"x": recording[..., begin : call * info.frames]})["y"], outputs["y"].shape[-1]
        whole = whole[..., (call - 1) * rows : call * rows] if info.is_padded else whole
        np.testing.assert_allclose(outputs["y"], whole[..., -rows:], rtol=1e-5, err_msg=f"call {call} of {text}")


def test_a_random_network(tmp_path: Path) -> None:
    check_random(0, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 60))
def test_many_random_networks(seed: int, tmp_path: Path) -> None:
    check_random(seed, tmp_path)


def conv(attributes: str, behind: str = "y = Relu(a)") -> str:
    return f"g (float[N,5,T] x) => (float[N,8,U] y) {{ a = Conv <{attributes}> (x, w_8x5x3, b_8) {behind} }}"


REFUSED = [
    (conv("pads = [1, 1]"), (1, 5, 9), 2, None, "pads time by 1 behind its window"),
    (conv("pads = [1, 1]", "y = Conv (a, w_8x8x3)"), (1, 5, 9), 2, None, "Conv y frame .* Conv a pads .*causal"),
    (conv("pads = [0, 0]", "y = Conv <pads = [2, 0]> (a, w_8x8x3)"), (1, 5, 9), 2, None, "behind layers without"),
    (conv("pads = [3, 0]"), (1, 5, 9), 2, None, "more than its window of 3 rows"),
    (conv("pads = [2, 0]", "y = AveragePool <kernel_shape = [2], pads = [1, 0]> (a)"), (1, 5, 9), 2, None, "divides"),
    (conv("strides = [2]"), (1, 5, 9), 2, 3, "a multiple of 2 frames"),
    (conv("strides = [2]"), (1, 5, 9), 2, 10, "its window has 9"),
    (conv("strides = [1]"), (1, 5, 9), 3, None, "give the axis of time, 1 to 2"),
    (conv("strides = [1]"), (1, 5, 9), 1, None, "c_stream saves nothing: Conv .* reads the whole axis"),
    ("g (float[N,1,5] x) => (float[N,1,3] y) { y = MatMul (x, w_5x3) }", (1, 1, 5), 1, None, "has one frame"),
    ("g (float[N,T,5] x) => (float[N,T,3] y) { a = Softmax <axis = 1> (x) y = MatMul (a, w_5x3) }", (1, 6, 5), 1, None,
     "c_stream saves nothing: Softmax"),
    ("g (float[N,T,5] x) => (float[N,T,3] y) { p = Pad <mode = \"edge\"> (x, pads) y = MatMul (p, w_5x3) }",
     (1, 6, 5), 1, None, "something else than zeros"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "shape", "axis", "frames", "message"), REFUSED)
def test_it_is_refused(text: str, shape: tuple[int, ...], axis: int, frames: int | None, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        built(text, shape, axis, frames)


def test_recurrent_layers_and_several_inputs_are_refused() -> None:
    text = "g (float[1,T,5] x) => (float[1,1,T,4] y) { t = Transpose <perm = [1, 0, 2]> (x) "
    text += "s = LSTM <hidden_size = 4> (t, w_1x16x5, w_1x16x4) y = Transpose <perm = [2, 1, 0, 3]> (s) }"
    with pytest.raises(TargetError, match=r"LSTM s .* export one step of it"):
        built(text, (1, 7, 5), 1)
    text = "g (float[1,T,5] x, float[1,T,5] z) => (float[1,T,3] y) { a = Add (x, z) y = MatMul (a, w_5x3) }"
    feeds = [{name: noise(1, 7, 5, seed=seed) for seed, name in enumerate("xz")}]
    with pytest.raises(TargetError, match="networks of one input, and this one has 2: x, z"):
        of_model(network(text), feeds, options=COptions(c_stream=1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"c_stream": 0}, "axis 0 is that of samples"),
        ({"c_stream": 2, "c_frames": 0}, "1 or more"),
        ({"c_frames": 2}, "give c_stream"),
        ({"c_stream": "2"}, "c_stream is .2.; give a whole number"),
        ({"c_stream": 2, "c_frames": True}, "c_frames is True; give a whole number"),
    ],
)
def test_options_are_checked(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        COptions(**options)  # type: ignore[arg-type]


def test_a_compile_refuses_before_it_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptqc.compiler.analyze", lambda *_: pytest.fail("it measures"))
    model, data = ir.to_proto(network(conv("pads = [1, 1]"))), samples(5, 9)
    with pytest.raises(TargetError, match="Conv a pads time by 1 behind its window"):
        compiled(model, data, tmp_path, "50%", target="c", c_stream=2)


def test_it_is_delivered_with_what_a_call_takes(tmp_path: Path) -> None:
    artifact = compiled(ir.to_proto(network(SEPARABLE)), samples(5, 17), tmp_path, "80%", target="c", c_stream=2)
    document, header = artifact.manifest["targets"]["c"], (artifact.folder / "c" / "model.h").read_text()
    assert document["verification"]["integers_different"] == 0
    assert (document["frames_per_call"], document["frames_per_window"], document["first_call_with_outputs"]) == (
        1,
        17,
        17,
    )
    assert f"#define PTQC_MODEL_STATE_BYTES {document['state_bytes']}" in header
    assert f"{document['state_bytes']:,} of earlier frames" in artifact.summary()
    for board in document["boards"].values() if emulation.missing() is None else ():
        assert board["samples"] == 34
    assert artifact.manifest["target"]["options"]["c_stream"] == 2  # a resolve takes frames as well
