"""Models that are left in files: the same answers, without holding the tensors."""

import gc
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from compiling import compiled, proto, weight
from mostly_slow import mostly_slow

from ptqc.errors import ModelError
from ptqc.execution import onnxruntime as execute
from ptqc.execution import sandboxed
from ptqc.execution.onnxruntime import PREPACKING, Runner, message, open_packed, without_tensors
from ptqc.execution.speed import Subject
from ptqc.execution.walk import Slicer, Walk
from ptqc.frontend import read_model
from ptqc.frontend.first_run import try_once
from ptqc.ir import external
from ptqc.ir.external import has_references, spill, whole_message
from ptqc.tools.comparing.contenders import file_contender

GRAPH = "g (float[N,64] x) => (float[N,8] y) { h = MatMul(x, w) r = Relu(h) y = MatMul(r, v) }"
FEEDS = {"x": np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)}


def network() -> onnx.ModelProto:
    return proto(GRAPH, w=weight(64, 96), v=weight(96, 8, seed=1))


@pytest.fixture(params=["own", "beside", "linked"])
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that is too large for memory, with its tensors inside, beside it, or inside and behind a link."""
    monkeypatch.setattr(external, "IN_MEMORY_LIMIT", 4000)
    path = tmp_path / "model.onnx"
    onnx.save(network(), path, save_as_external_data=request.param == "beside", location="model.data")
    if request.param == "linked":
        (tmp_path / "blobs").mkdir()
        path.rename(tmp_path / "blobs" / "0f3a")
        path.symlink_to("blobs/0f3a")
    return path


def test_it_computes_the_same_from_its_files(path: Path) -> None:
    model = read_model(path).model
    assert has_references(message(model))
    wanted = Runner(network()).run(FEEDS)["y"]
    assert np.allclose(Runner(model).run(FEEDS)["y"], wanted, atol=1e-5)
    walk = Walk(Slicer(model), [FEEDS])
    while walk.position < len(walk):
        walk.step()
    assert np.allclose(walk.values["y"][0], wanted, atol=1e-5)


def test_what_replaces_a_tensor_in_a_file_goes_to_a_file(path: Path) -> None:
    model, other = read_model(path).model, weight(64, 96, seed=7)
    walk, opened = Walk(Slicer(model), [FEEDS], {"w": other}), list[bool]()
    right = execute.open_proto

    def open_proto(proto: onnx.ModelProto, *arguments: object) -> ort.InferenceSession:
        opened.append(has_references(proto))
        return right(proto, *arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ptqc.execution.walk.open_proto", open_proto)
        result = walk.compute()["h"][0]
    assert opened == [True]
    assert np.allclose(np.asarray(result), FEEDS["x"] @ other, atol=1e-4)


def test_what_a_model_holds_goes_to_a_file_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    model, opened = ir.from_proto(network()), list[onnx.ModelProto]()
    right = execute.open_proto

    def open_proto(proto: onnx.ModelProto, *arguments: object, **options: object) -> ort.InferenceSession:
        opened.append(proto)
        return right(proto, *arguments, **options)  # type: ignore[arg-type]

    wanted = Runner(model, ["h"]).run(FEEDS)
    monkeypatch.setattr(execute, "open_proto", open_proto)
    lean = Runner(model, ["h"], lean=True)
    gc.collect()
    result = lean.run(FEEDS)
    assert all(np.allclose(result[name], wanted[name], atol=1e-5) for name in ("y", "h"))
    (proto,) = opened
    (w,) = (tensor for tensor in proto.graph.initializer if tensor.name == "w")
    assert not w.raw_data
    assert proto.ByteSize() < 4096


def test_size_and_digest_are_those_of_the_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = read_model(path)
    monkeypatch.setattr(external, "IN_MEMORY_LIMIT", 10**9)
    whole = read_model(path)
    assert (result.size, result.digest) == (whole.size, whole.digest)
    pairs = zip(result.model.graph.initializers.values(), whole.model.graph.initializers.values(), strict=True)
    for left, held in pairs:
        assert left.const_value is not None
        assert held.const_value is not None
        assert left.const_value.tobytes() == held.const_value.tobytes()


def test_a_whole_message_holds_what_was_referred_to(path: Path) -> None:
    whole = whole_message(read_model(path).model)
    assert np.array_equal(onnx.numpy_helper.to_array(whole.graph.initializer[0]), weight(64, 96))


def test_the_first_run_is_guarded(path: Path) -> None:
    source = read_model(path)
    try_once(source, FEEDS)
    path.resolve().write_bytes(b"")
    path.with_name("model.data").unlink(missing_ok=True)
    with pytest.raises(ModelError, match="cannot load the model"):
        Runner(source.model)


@pytest.fixture
def first_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run, which tolerates what a library refuses, is in this process and tolerates nothing."""

    def attempt(arguments: Sequence[str], size: int, seconds: float | None = None) -> None:
        del size, seconds
        if arguments[0] != "check":
            sandboxed._run(*arguments[1:], is_skeleton=arguments[0] == "run-skeleton")

    monkeypatch.setattr(sandboxed, "_attempt", attempt)
    monkeypatch.setattr(sandboxed, "_tolerated", lambda work: work())


@pytest.mark.usefixtures("first_run_here")
def test_the_first_run_loads_what_is_in_files(path: Path) -> None:
    try_once(read_model(path), FEEDS)


@pytest.mark.usefixtures("first_run_here")
def test_the_first_run_loads_a_file_that_is_smaller_than_its_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tensors share a stretch of it."""
    monkeypatch.setattr(external, "IN_MEMORY_LIMIT", 20_000)
    model = proto(GRAPH, w=weight(64, 64), v=weight(64, 64))
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, location="model.data")
    model = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    del model.graph.initializer[1].external_data[:]
    model.graph.initializer[1].external_data.extend(model.graph.initializer[0].external_data)
    (tmp_path / "model.data").write_bytes(weight(64, 64).tobytes())
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    source = read_model(tmp_path / "model.onnx")
    assert source.size < external.IN_MEMORY_LIMIT < external.weight_bytes(source.model)
    try_once(source, FEEDS)


# Two layers that share a weight of codes.
TIED = """g (float[N,64] x) => (float[N,64] y) {
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = DequantizeLinear(w, t, n) a = MatMul(d, v)
    aq = QuantizeLinear(a, t, z) ad = DequantizeLinear(aq, t, z) u = DequantizeLinear(w, t, n) b = MatMul(ad, u)
    bq = QuantizeLinear(b, t, z) y = DequantizeLinear(bq, t, z)
}"""


def test_layers_that_share_a_weight_in_a_file_load_where_sums_would_saturate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scales = {"s": np.float32(0.02), "t": np.float32(0.05), "z": np.uint8(128), "n": np.int8(0)}
    codes = np.random.default_rng(0).integers(-127, 128, (64, 64)).astype(np.int8)
    model = proto(TIED, 19, w=codes, **{name: np.array(value) for name, value in scales.items()})
    monkeypatch.setattr(execute, "saturates", lambda: True)
    wanted = Runner(model).run(FEEDS)["y"]
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, location="model.data")
    monkeypatch.setattr(external, "IN_MEMORY_LIMIT", 1000)
    assert np.array_equal(execute.run(tmp_path / "model.onnx", FEEDS, ["a"])["y"], wanted)


def test_a_size_that_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external, "IN_MEMORY_LIMIT", 4000)
    model = network()
    model.graph.initializer[0].dims[0] = 65
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=r"'w' of dimensions \[65, 96\] needs 24960 bytes of data, it has 24576"):
        read_model(tmp_path / "model.onnx")


def test_inputs_stand_for_references(path: Path) -> None:
    skeleton = message(read_model(path).model)
    bare = without_tensors(skeleton)
    assert [value.name for value in bare.graph.input] == ["x", "w"]
    onnx.checker.check_model(bare)
    assert len(skeleton.graph.initializer) == 2


def test_values_that_share_a_tensor_keep_their_names(path: Path) -> None:
    model = read_model(path).model
    w = model.graph.initializers["w"]
    model.graph.initializers.add(ir.Value(name="again", shape=w.shape, type=w.type, const_value=w.const_value))
    tensors = {tensor.name: tensor.raw_data for tensor in whole_message(model).graph.initializer}
    assert list(tensors) == ["w", "v", "again"]
    assert tensors["w"] == tensors["again"]


def test_models_are_found_where_the_working_folder_is_gone(tmp_path: Path) -> None:
    program = "import os; os.rmdir(os.getcwd()); from ptqc.execution.onnxruntime import ROOT; print(ROOT)"
    command = [sys.executable, "-c", program]
    (tmp_path / "gone").mkdir()
    done = subprocess.run(command, cwd=tmp_path / "gone", capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == (tmp_path.anchor, "")


def test_what_a_rewrite_made_goes_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external, "IN_MEMORY_LIMIT", 4000)
    model = ir.from_proto(network())
    wanted = Runner(network()).run(FEEDS)["y"]
    spill(model)
    tensor = model.graph.initializers["w"].const_value
    assert isinstance(tensor, ir.ExternalTensor)
    place = Path(tensor.path)
    assert place.stat().st_size >= 64 * 96 * 4
    assert np.allclose(Runner(model).run(FEEDS)["y"], wanted, atol=1e-5)
    del model, tensor
    gc.collect()  # the nodes of a graph refer to each other
    assert not place.exists()


@pytest.mark.parametrize("kind", mostly_slow(["FLOAT16", "BFLOAT16"], "BFLOAT16"))
def test_half_precision_compiles_from_files(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the same numbers as from memory, which are beside the file then."""
    model = network()
    half = getattr(onnx.TensorProto, kind)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(half)
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor).astype(dtype)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    model.graph.node[0].input[0], model.graph.node[-1].output[0] = "x16", "y16"
    model.graph.node.insert(0, onnx.helper.make_node("Cast", ["x"], ["x16"], to=half))
    model.graph.node.append(onnx.helper.make_node("Cast", ["y16"], ["y"], to=onnx.TensorProto.FLOAT))
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, location="model.data")
    result = []
    for limit in (4000, 10**9):
        monkeypatch.setattr(external, "IN_MEMORY_LIMIT", limit)
        values = [{"x": row[None]} for row in np.random.default_rng(1).normal(size=(16, 64)).astype(np.float32)]
        made = compiled(tmp_path / "model.onnx", values, tmp_path / str(limit), bits=(4,), activations="float")
        assert ("model.data" in made.manifest["files"]) == (limit == 4000)
        result.append(onnx.load(made.path).graph)
    assert list(result[0].node) == list(result[1].node)
    for left, right in zip(result[0].initializer, result[1].initializer, strict=True):
        assert np.array_equal(onnx.numpy_helper.to_array(left), onnx.numpy_helper.to_array(right))


PROGRAM = """
import json, sys
from pathlib import Path
from ptqc.ir import external
external.IN_MEMORY_LIMIT = 10**7
from ptqc.frontend import read_model
def anonymous():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss_Anon:")) * 1024
before = anonymous()
source = read_model(sys.argv[1])
print(json.dumps(anonymous() - before))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_model_is_read_without_its_tensors(tmp_path: Path) -> None:
    """128 MB of them."""
    model = proto("g (float[N,4096] x) => (float[N,8192] y) { y = MatMul(x, w) }", w=np.ones((4096, 8192), np.float32))
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "model.onnx")]
    assert json.loads(subprocess.run(command, capture_output=True, check=True).stdout) < 60 * 2**20


def test_what_was_made_of_a_large_model_is_unpacked_run_by_run(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = "g (float[N,64] x) => (float[N,96] y) { c = Cast <to = 1> (k) w = Mul(c, s) y = MatMul(x, w) }"
    packed = proto(graph, k=np.arange(64 * 96).reshape(64, 96).astype(np.int8), s=weight(96))
    model = ir.from_proto(network())
    whole = open_packed(packed, model)
    monkeypatch.setattr(external, "IN_MEMORY_LIMIT", 4000)
    lean = open_packed(packed, model)
    assert np.array_equal(lean.run(FEEDS)["y"], whole.run(FEEDS)["y"])
    options = lean.session.get_session_options()
    assert not options.enable_cpu_mem_arena
    assert whole.session.get_session_options().enable_cpu_mem_arena


def test_what_is_timed_is_as_fast_as_for_users(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights are rearranged, which takes memory."""
    model, right = read_model(path).model, execute.open_session
    said: list[tuple[bool, bool]] = []

    def open_session(value: bytes, options: ort.SessionOptions, without: set[str]) -> ort.InferenceSession:
        try:
            is_prepacked = options.get_session_config_entry(PREPACKING) != "1"
        except RuntimeError:  # it has no such entry
            is_prepacked = True
        said.append((is_prepacked, "ConstantFolding" in without))
        return right(value, options, without)

    monkeypatch.setattr(execute, "open_session", open_session)
    timed, plain = Subject(model, FEEDS).session(), Runner(model)
    assert np.allclose(timed.run(FEEDS)["y"], plain.run(FEEDS)["y"], atol=1e-5)
    file_contender(path, 1, None).start()
    assert said == [(True, False), (False, True), (True, False)]
