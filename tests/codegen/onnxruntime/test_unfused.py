"""Products with a bias stay on integer kernels where sizes are known, to the model or to whoever runs the file."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from compiling import compiled, proto, samples, weight

from ptqc.artifact.folder import Artifact
from ptqc.execution.onnxruntime import Runner, session_options

LINEAR = """g (float[%s,10,32] x) => (float[%s,10,64] y) {
    h = MatMul(x, w1)
    hb = Add(h, b1)
    r = Relu(hb)
    t = MatMul(r, w2)
    y = Add(b2, t)
}"""


def linear(batch: str) -> onnx.ModelProto:
    """Two products with biases on inputs of three axes, the first of this size."""
    graph = LINEAR % (batch, batch)
    w1, w2 = (np.ascontiguousarray(weight(*shape, seed=i).T) for i, shape in enumerate(((96, 32), (64, 96))))
    return proto(graph, w1=w1, b1=weight(96), w2=w2, b2=weight(64, seed=2))


def integer_kernels(file: Path, options: ort.SessionOptions) -> int:
    """Products on integer kernels of what ONNX Runtime makes of a file."""
    options.optimized_model_filepath = str(file.with_suffix(".optimized"))
    ort.InferenceSession(str(file), options, ["CPUExecutionProvider"])
    graph = onnx.load(options.optimized_model_filepath).graph
    kinds = Counter(node.op_type for node in graph.node)
    return kinds["MatMulIntegerToFloat"] + kinds["QLinearMatMul"] + kinds["QGemm"]


@pytest.fixture(scope="module")
def free(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return compiled(linear("N"), samples(10, 32), tmp_path_factory.mktemp("free"), "25%", activations="integer")


@pytest.mark.slow
def test_a_fixed_batch_compiles(tmp_path: Path) -> None:
    model = linear("2")
    data = [{"x": batch} for batch in samples(2, 10, 32)]
    artifact = compiled(model, data, tmp_path, "25%", activations="integer")
    assert integer_kernels(artifact.path, session_options()) == 2
    held_back = samples(2, 10, 32, seed=8)[0]
    wanted, result = (Runner(file).run({"x": held_back})["y"] for file in (model, artifact.path))
    assert np.square(result - wanted).sum() < 0.005 * np.square(wanted).sum()


def test_kernels_stay_where_a_session_sets_a_free_size(free: Artifact) -> None:
    options = session_options()
    options.add_free_dimension_override_by_name("N", 4)
    assert integer_kernels(free.path, session_options()) == 2
    assert integer_kernels(free.path, options) == 2


def test_kernels_stay_where_the_shape_of_the_input_is_written_anew(free: Artifact, tmp_path: Path) -> None:
    file = onnx.load(free.path)
    for value in (*file.graph.input, *file.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(file, tmp_path / "fixed.onnx")
    assert integer_kernels(tmp_path / "fixed.onnx", session_options()) == 2
    one = {"x": samples(10, 32)[:1]}
    np.testing.assert_array_equal(Runner(tmp_path / "fixed.onnx").run(one)["y"], Runner(free.path).run(one)["y"])


@pytest.mark.slow
def test_a_sum_with_as_many_axes_is_left_alone(tmp_path: Path) -> None:
    model = linear("N")
    model.graph.node[4].op_type, model.graph.node[4].input[0] = "Add", "s"
    model.graph.node.insert(0, onnx.helper.make_node("MatMul", ["x", "w3"], ["s"]))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(weight(64, 32).T), "w3"))
    artifact = compiled(model, samples(10, 32), tmp_path, "25%", activations="integer")
    kinds = Counter(node.op_type for node in onnx.load(artifact.path).graph.node)
    assert kinds["Sum"] == 1
    assert kinds["Add"] == 1
