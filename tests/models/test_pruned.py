"""Pruning makes zeros of the smallest weights of each layer, and of nothing else."""

import numpy as np
import onnx
import pytest
from compiling import residual
from onnx import numpy_helper
from pruned import pruned


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_the_smallest_weights_of_each_layer_become_zeros(share: float) -> None:
    model = residual()
    result = pruned(model, share)
    onnx.checker.check_model(result)
    for before, after in zip(model.graph.initializer, result.graph.initializer, strict=True):
        old, new = numpy_helper.to_array(before), numpy_helper.to_array(after)
        np.testing.assert_array_equal(new[new != 0], old[new != 0])
        zeros = int(share * old.size) if old.ndim > 1 else 0
        assert int((new == 0).sum()) == zeros
        assert not zeros or np.abs(old[new == 0]).max() <= np.abs(old[new != 0]).min()
