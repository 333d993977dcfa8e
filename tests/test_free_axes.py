"""Sizes of -1 and 0 in a file, and names that say nothing, stand for axes of any size."""

from pathlib import Path

import numpy as np
import onnx
import onnx.shape_inference
import pytest
from compiling import compiled, proto, weight

from ptqc.calibration.inputs import input_specs
from ptqc.execution.onnxruntime import Runner
from ptqc.frontend import read_model
from ptqc.frontend.operators import name_free_axes

NET = """g (float[N,3,H,W] x, float[N,2] scale) => (float[N,K] y) {
    a = Conv<pads=[1,1,1,1]>(x, w)
    r = Relu(a)
    p = GlobalAveragePool(r)
    f = Flatten(p)
    s = Concat<axis=1>(f, scale)
    y = MatMul(s, v)
}"""


def with_free_sizes(free: int | str) -> onnx.ModelProto:
    """A network whose symbols are all written alike, as PaddlePaddle's exporter does, inner values included."""
    model = onnx.shape_inference.infer_shapes(proto(NET, w=weight(16, 3, 3, 3), v=weight(18, 10)))
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                setattr(dim, "dim_param" if isinstance(free, str) else "dim_value", free)
    return model


@pytest.mark.parametrize("free", [-1, 0, "?", "", "None"])
def test_such_axes_of_inputs_get_names_of_their_own(free: int | str, tmp_path: Path) -> None:
    onnx.save(with_free_sizes(free), tmp_path / "m.onnx")
    specs = input_specs(read_model(tmp_path / "m.onnx").model)
    assert [spec.shape for spec in specs] == [("x_0", 3, "x_2", "x_3"), ("scale_0", 2)]


def test_names_that_are_taken_are_not_used_twice() -> None:
    model = with_free_sizes(-1)
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "x_0"
    name_free_axes(model)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "x_0_"


def test_stated_sizes_and_names_stay() -> None:
    model = proto(NET, w=weight(16, 3, 3, 3), v=weight(18, 10))
    before = model.SerializeToString()
    name_free_axes(model)
    assert model.SerializeToString() == before


def test_it_compiles_and_takes_any_size(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = [(8, 8), (9, 12), (16, 10)]
    feeds = [
        {"x": rng.standard_normal((1, 3, *sizes[i % 3]), np.float32), "scale": rng.random((1, 2), np.float32)}
        for i in range(32)
    ]
    artifact = compiled(with_free_sizes(-1), feeds, tmp_path, bits=(7,))
    wanted, result = Runner(tmp_path / "model.onnx"), Runner(artifact.path)
    two = {"x": rng.standard_normal((2, 3, 20, 7), np.float32), "scale": rng.random((2, 2), np.float32)}
    real, packed = wanted.run(two)["y"], result.run(two)["y"]
    assert np.abs(real - packed).max() < 0.05 * np.abs(real).max()
