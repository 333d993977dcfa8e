"""Models that ONNX Runtime's optimizer wrote, compiled as a whole or read."""

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from compiling import compiled, proto, residual, samples, weight
from onnx import numpy_helper

from ptqc.errors import ModelError
from ptqc.execution.onnxruntime import Runner, open_session, session_options
from ptqc.frontend import read_model
from ptqc.passes.canonicalize.rewrites import default_rewrites
from ptqc.passes.runner import run_rewrites

WIDTH = 32
BLOCK = f"""<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]>
g (float[N, 6, {WIDTH}] x, int64[N, 6] places) => (float[N, 6, {WIDTH}] y) {{
    q = MatMul(x, wq)
    k = MatMul(x, wk)
    r = com.microsoft.RotaryEmbedding <interleaved = 0> (q, places, cosines, sines)
    a = com.microsoft.MultiHeadAttention <num_heads = 4> (r, k, k)
    n = com.microsoft.SkipLayerNormalization(a, x, gamma, beta)
    h = MatMul(n, wh)
    u = com.microsoft.BiasGelu(h, bias)
    y = MatMul(u, wy)
}}"""


def block() -> onnx.ModelProto:
    """Half a transformer's layer, with rotary tables large enough to be packed."""
    model = onnx.parser.parse_model(BLOCK)
    shapes = {"wq": (WIDTH, WIDTH), "wk": (WIDTH, WIDTH), "wh": (WIDTH, 64), "wy": (64, WIDTH)}
    constants = {name: weight(*shape[::-1], seed=i).T for i, (name, shape) in enumerate(shapes.items())}
    angles = np.arange(128)[:, None] / 10 ** np.arange(4)[None]
    constants |= {"cosines": np.cos(angles).astype(np.float32), "sines": np.sin(angles).astype(np.float32)}
    constants |= {"gamma": np.ones(WIDTH, np.float32), "beta": weight(WIDTH), "bias": weight(64)}
    model.graph.initializer.extend(numpy_helper.from_array(np.ascontiguousarray(a), n) for n, a in constants.items())
    return model


def optimized(model: onnx.ModelProto, path: Path, level: str) -> Path:
    """What ONNX Runtime's optimizer makes of a model, as a file."""
    options = session_options()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(path)
    open_session(model.SerializeToString(), options)
    return path


@pytest.mark.long
def test_what_stays_of_the_runtimes_own_is_compiled_and_said(tmp_path: Path) -> None:
    rows, places = samples(6, WIDTH, count=16), np.tile(np.arange(6), (16, 1))
    data = [{"x": x[None], "places": p[None]} for x, p in zip(rows, places, strict=True)]
    artifact = compiled(block(), data, tmp_path, "60%", pipeline="light")
    assert artifact.manifest["file"]["runtime_operators"] == ["MultiHeadAttention", "RotaryEmbedding"]
    assert "ONNX Runtime alone, with operators of its own: MultiHeadAttention" in artifact.summary()
    assert "with operators of its own: MultiHeadAttention" in (artifact.folder / "report.html").read_text()
    assert {"cosines", "sines"} <= {entry["weight"] for entry in artifact.plan["weights"]}
    feeds = {"x": rows, "places": places}
    real, packed = Runner(tmp_path / "model.onnx").run(feeds)["y"], Runner(artifact.path).run(feeds)["y"]
    assert np.linalg.norm(packed - real) < 0.05 * np.linalg.norm(real)


DECODER = f"""<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]>
g (float[1, 1, {WIDTH}] x, float[1, 1, 6, 16] past_key, float[1, 1, 6, 16] past_value, int32[1] lengths, int32[1] total)
=> (float[1, 1, {WIDTH}] y, float[1, 1, 7, 16] present_key, float[1, 1, 7, 16] present_value) {{
    q = MatMul(x, wq)
    k = MatMul(x, wk)
    v = MatMul(x, wv)
    a, present_key, present_value = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1>
        (q, k, v, past_key, past_value, lengths, total)
    y = MatMul(a, wy)
}}"""


@pytest.mark.slow
def test_a_library_takes_attention_of_groups_with_its_cache(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(DECODER)
    shapes = {"wq": (WIDTH, WIDTH), "wk": (WIDTH, 16), "wv": (WIDTH, 16), "wy": (WIDTH, WIDTH)}
    constants = {name: weight(*shape[::-1], seed=i).T for i, (name, shape) in enumerate(shapes.items())}
    model.graph.initializer.extend(numpy_helper.from_array(np.ascontiguousarray(a), n) for n, a in constants.items())
    lengths = {"lengths": np.array([6], np.int32), "total": np.array([7], np.int32)}
    caches = [{"past_key": samples(1, 6, 16, count=1), "past_value": samples(1, 6, 16, count=1)} for _ in range(8)]
    data = [{"x": x[None, None], **past, **lengths} for x, past in zip(samples(WIDTH, count=8), caches, strict=True)]
    artifact = compiled(model, data, tmp_path, "90%", target="cpu", activations="float")
    result, wanted = artifact.native().run(data[0]), Runner(artifact.path).run(data[0])
    for name, array in wanted.items():
        np.testing.assert_allclose(result[name], array, atol=1e-4)


def test_fused_convolutions_are_layers_again(tmp_path: Path) -> None:
    path = optimized(residual(), tmp_path / "m.onnx", "EXTENDED")
    assert any(node.op_type == "FusedConv" for node in onnx.load(path).graph.node)
    model = read_model(path).model
    run_rewrites(model, default_rewrites(), [{"x": samples(3, 8, 8)[:2]}])
    assert sorted(node.op_type for node in model.graph) == [
        *("Add", "Conv", "Conv", "Conv", "Flatten", "Gemm", "GlobalAveragePool", "Relu", "Relu", "Relu")
    ]


def test_blocked_layouts_are_refused_with_what_to_do(tmp_path: Path) -> None:
    path = optimized(residual(), tmp_path / "m.onnx", "ALL")
    if not any(node.domain == "com.microsoft.nchwc" for node in onnx.load(path).graph.node):
        pytest.skip("ONNX Runtime has no blocked layout on this processor")
    with pytest.raises(ModelError, match=r"one kind of processor .* ORT_ENABLE_EXTENDED at most"):
        read_model(path)


def normalized(opset: int, *, centred: bool) -> onnx.ModelProto:
    """A normalization as exporters write it: of the last axis, by its root mean square or its deviation."""
    graph = f"""g (float[N, {WIDTH}] x) => (float[N, {WIDTH}] y) {{
        {"m = ReduceMean <axes = [-1]> (x)  d = Sub(x, m)" if centred else "d = Identity(x)"}
        s = Pow(d, two)
        v = ReduceMean <axes = [-1]> (s)
        e = Add(v, epsilon)
        r = Sqrt(e)
        n = Div(d, r)
        {"t = Mul(n, gamma)  y = Add(t, beta)" if centred else "y = Mul(n, gamma)"}
    }}"""
    constants = {"two": np.array(2.0, np.float32), "epsilon": np.array(1e-3, np.float32), "gamma": weight(WIDTH)}
    if centred:
        constants["beta"] = weight(WIDTH, seed=1)
    return proto(graph, opset, **constants)


@pytest.mark.parametrize(("opset", "centred"), [(13, True), (13, False), (17, False)])
def test_normalizations_that_onnx_does_not_define_there(tmp_path: Path, opset: int, centred: bool) -> None:
    path = optimized(normalized(opset, centred=centred), tmp_path / "m.onnx", "EXTENDED")
    fused = "LayerNormalization" if centred else "SimplifiedLayerNormalization"
    assert [node.op_type for node in onnx.load(path).graph.node] == [fused]
    feeds = {"x": samples(WIDTH)}
    result = Runner(read_model(path).model).run(feeds)["y"]
    np.testing.assert_allclose(result, Runner(path).run(feeds)["y"], rtol=1e-5, atol=1e-6)


def test_a_normalization_in_half_precision_stays_in_it(tmp_path: Path) -> None:
    graph = f"g (float16[N, {WIDTH}] x) => (float16[N, {WIDTH}] y) {{ y = SimplifiedLayerNormalization(x, gamma) }}"
    onnx.save(proto(graph, gamma=weight(WIDTH).astype(np.float16)), tmp_path / "m.onnx")
    feeds = {"x": samples(WIDTH).astype(np.float16)}
    result = Runner(read_model(tmp_path / "m.onnx").model).run(feeds)["y"]
    np.testing.assert_allclose(result, Runner(tmp_path / "m.onnx").run(feeds)["y"], rtol=5e-3, atol=1e-3)
