import numpy as np
from onnx import numpy_helper

from ptqc.codegen.onnxruntime import constants
from ptqc.codegen.onnxruntime.unpack_functions import DOMAIN, UnpackFunction, UnpackKind
from ptqc.formats import Integer, Palette
from ptqc.ir.external import tensor
from ptqc.ir.quantized_weight import QuantizedWeight


class Shared:
    """Collects the arrays that a constant hands over."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []

    def __call__(self, array: np.ndarray) -> str:
        self.arrays.append(array)
        return f"a{len(self.arrays) - 1}"


def test_a_layer() -> None:
    codes, scale = np.array([[1, -3], [3, -1], [1, 1]], np.int8), np.array([0.25, 1, 4], np.float32)
    share = Shared()
    bias = constants.Bias(np.array([8, 16, -24], np.int32), np.ones(3, np.float32))
    made = constants.layer(QuantizedWeight(Integer(2), codes, scale, 0), bias, "step", ["w", "b"], share)
    assert made.function == UnpackFunction(UnpackKind.LAYER, None, 0, padded=True)
    assert (made.call.op_type, made.call.domain, list(made.call.output)) == ("Lm", DOMAIN, ["w", "b"])
    assert list(made.call.input) == ["a0", "a1", "a2", "a3", "a4", "a5", "step", "a6"]
    planes, weights, levels, *others = share.arrays
    np.testing.assert_array_equal(planes, [[[0b001100]], [[0b110101]]])
    np.testing.assert_array_equal(weights, [[1, 2]])
    np.testing.assert_array_equal(levels, [-3, -1, 1, 3])
    assert [(a.dtype, a.tolist()) for a in others] == [
        (np.uint8, [32, 64, 128]),
        (np.float32, 2.0**-12),
        (np.int8, [32, 64, -96]),
        (np.float32, 0.25),
    ]
    assert list(made.call.attribute[0].ints) == [3, 2]


def test_eight_bits_are_stored_as_they_are() -> None:
    codes, share = np.array([[1, -128]], np.int8), Shared()
    made = constants.weight(QuantizedWeight(Integer(8), codes, np.ones(1, np.float32), 0), "w", share, as_float=False)
    assert made.function == UnpackFunction(UnpackKind.WEIGHT, Integer(8), 0)
    np.testing.assert_array_equal(share.arrays[0], codes)
    assert not made.call.attribute


def test_a_float_constant_and_a_palette() -> None:
    codes = np.array([[[1, -2]]], np.int8)
    made = constants.weight(QuantizedWeight(Integer(4), codes, np.ones(1, np.float32), 1), "w", Shared(), as_float=True)
    assert made.function == UnpackFunction(UnpackKind.FLOAT, None, 1, 3, padded=True)
    form = Palette(2)
    share = Shared()
    made = constants.weight(
        QuantizedWeight(form, np.array([0, 2, 1], np.uint8), np.array([1, 2, 3.5]), 0), "w", share, as_float=True
    )
    assert made.function == UnpackFunction(UnpackKind.VALUES, form)
    assert share.arrays[-1].dtype == np.float32


def test_an_initializer() -> None:
    array = np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3))
    made = tensor("n", array)
    assert (made.name, made.raw_data) == ("n", array.tobytes())
    np.testing.assert_array_equal(numpy_helper.to_array(made), array)
