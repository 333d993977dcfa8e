"""The network for timing has the published shape of ResNet-50."""

from math import prod

import onnx
import pytest
import random_resnet50

# Of torchvision's model with 25,557,032 parameters, without 53,120 of batch normalization and 1,000 biases.
WEIGHTS = 25_502_912


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return random_resnet50.build()


def test_it_has_as_many_weights_as_the_published_one(model: onnx.ModelProto) -> None:
    sizes = [prod(tensor.dims) for tensor in model.graph.initializer if len(tensor.dims) > 1]
    assert sum(sizes) == WEIGHTS
    assert sum(node.op_type == "Conv" for node in model.graph.node) == 53


def test_its_shapes_fit(model: onnx.ModelProto) -> None:
    onnx.checker.check_model(model)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    sizes = {value.name: [d.dim_value for d in value.type.tensor_type.shape.dim] for value in inferred.graph.value_info}
    pooled = next(node for node in model.graph.node if node.op_type == "GlobalAveragePool")
    assert sizes[pooled.input[0]][1:] == [2048, 7, 7]
