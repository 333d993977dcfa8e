"""Tensors in a file that a message refers to, and files that are packed so."""

import gc
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from compiling import compiled, proto, weight
from graphs import noise

import ptqc
from ptqc.ir import external
from ptqc.ir.external import SpilledTensors, array_of, content, held, place_of, refers, tensor

ARRAYS = [
    noise(40, 50),
    np.arange(9000, dtype=np.uint8).reshape(90, 100).T,
    noise(5000).astype(np.float16),
    noise(5000).astype(ml_dtypes.bfloat16),
    (np.arange(20_000) % 16 - 8).astype(ml_dtypes.int4).reshape(100, 200),
    np.arange(5000).astype(ml_dtypes.int4),
    np.arange(3),
    np.array("text", object),
]


@pytest.mark.parametrize("array", ARRAYS)
def test_an_initializer_has_the_values_of_its_array(array: np.ndarray) -> None:
    spilled = SpilledTensors()
    made, whole = spilled.make("a", array), tensor("a", array)
    assert refers(made) == (len(whole.raw_data) >= 4096)
    assert made.dims == list(array.shape)
    assert np.array_equal(array_of(made), onnx.numpy_helper.to_array(whole))


def test_equal_ones_are_written_once() -> None:
    tensors = SpilledTensors()
    first, same, other = (tensors.make(str(i), noise(2000, seed=seed)) for i, seed in enumerate((0, 0, 1)))
    assert content(first) == content(same) != content(other)
    assert place_of(first) == place_of(same)
    assert content(first) != content(tensors.make("turned", noise(2000).reshape(50, 40)))
    assert place_of(other)[0].stat().st_size < 3 * first.ByteSize() + 3 * 8000


def test_the_file_goes_with_its_maker() -> None:
    tensors = SpilledTensors()
    path, _, _ = place_of(tensors.make("a", noise(2000)))
    assert path.is_file()
    del tensors
    gc.collect()
    assert not path.exists()


def test_a_message_can_take_in_what_it_refers_to() -> None:
    tensors = SpilledTensors()
    model = onnx.ModelProto()
    model.graph.initializer.append(tensors.make("a", noise(2000)))
    whole = held(model)
    assert whole.graph.initializer[0] == tensor("a", noise(2000))
    assert refers(model.graph.initializer[0])


GRAPH = """g (int64[N,L] t) => (float[N,L,48] y) {
    e = Gather(k, t) h = MatMul(e, w) r = Relu(h) s = MatMul(r, v) z = Add(s, e) y = MatMul(z, u)
}"""


@pytest.mark.long
@pytest.mark.parametrize(
    "operators", ["standard", *(pytest.param(name, marks=pytest.mark.slow) for name in ("onnxruntime", "dequantize"))]
)
def test_a_model_beyond_memory_is_packed_beside_its_file(
    operators: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verified, of the size that it says, and of the bytes of a second compile."""
    monkeypatch.setattr(external, "IN_MEMORY_LIMIT", 4000)
    model = proto(
        GRAPH, k=weight(300, 64), w=weight(64, 96, seed=1), v=weight(96, 64, seed=2), u=weight(64, 48, seed=3)
    )
    random = np.random.default_rng(0)
    feeds = [{"t": random.integers(0, 300, (1, 12))} for _ in range(16)]
    made, again = (
        compiled(model, feeds, tmp_path / name, budget="4.9bit", bits=(4,), activations="float", operators=operators)
        for name in ("one", "two")
    )
    sizes = [(made.folder / name).stat().st_size for name in ("model.onnx", "model.data")]
    assert made.manifest["file"]["bytes"] == sum(sizes) <= made.manifest["allocation"]["limit"]
    assert made.manifest["files"] == again.manifest["files"]
    written = onnx.load(made.path, load_external_data=False)
    kinds = {"standard": set(), "onnxruntime": {"MatMulNBits"}, "dequantize": {"DequantizeLinear"}}
    readers = {"MatMulNBits", "DequantizeLinear"} & {node.op_type for node in written.graph.node}
    assert readers == kinds[operators]
    assert "golden" in ptqc.verify(made.folder).checks
    (result,) = ort.InferenceSession(made.path).run(None, feeds[0])
    assert np.allclose(result, made.run(feeds[0])["y"])
