from collections.abc import Mapping

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from graphs import parse

from ptqc.calibration.inputs import TEXT, InputSpec, conform, input_specs
from ptqc.errors import CalibrationError

IMAGE = InputSpec("x", np.dtype(np.float32), ("N", 3, 8, 8))
PAIR = (InputSpec("ids", np.dtype(np.int64), ("B", "T")), InputSpec("mask", np.dtype(np.int64), ("B", "T")))


def refusal(sample: Mapping[str, object], *inputs: InputSpec) -> str:
    with pytest.raises(CalibrationError) as caught:
        conform(sample, inputs, 37)
    return str(caught.value)


def test_a_fitting_sample_is_kept_as_it_is():
    x = np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype(np.float32)
    feeds = conform({"x": x}, [IMAGE], 0)
    assert feeds["x"] is x


def test_feeds_come_in_the_models_input_order():
    sample = {"mask": np.ones((1, 4), np.int64), "ids": np.zeros((1, 4), np.int64)}
    assert list(conform(sample, PAIR, 0)) == ["ids", "mask"]


@pytest.mark.parametrize(
    ("shape", "advice"),
    [
        ((1, 3, 6, 6), "resize, crop or pad"),
        ((8, 8, 3), "add the batch axis with array[numpy.newaxis], then the data look channels last"),
        ((8, 8), "an array with 4 axes"),
        ((1, 8, 8, 3), "channels last; use array.transpose(0, 3, 1, 2)"),
    ],
)
def test_a_wrong_shape_says_what_is_expected_and_what_to_do(shape, advice):
    message = refusal({"x": np.zeros(shape, np.float32)}, IMAGE)
    assert message.startswith(f"samples[37], input 'x': has shape {shape}, expected (N, 3, 8, 8): ")
    assert advice in message


@pytest.mark.parametrize("shape", [(1, 5), (5,)])
def test_a_fixed_batch_asks_for_its_rows(shape):
    spec = InputSpec("x", np.dtype(np.float32), (4, 5))
    assert "give 4 rows in each sample" in refusal({"x": np.zeros(shape, np.float32)}, spec)


@pytest.mark.parametrize(
    ("shape", "declared"),
    [((3, 8, 8), ("N", 3, 8, 8)), ((5,), (None, 5)), ((7,), ("B", "T")), ((5,), (1, 5)), ((), ("N",))],
)
def test_the_axis_of_a_batch_of_one_may_be_left_out(shape, declared):
    x = np.random.default_rng(0).random(shape, np.float32)
    spec = InputSpec("x", np.dtype(np.float32), declared)
    np.testing.assert_array_equal(conform({"x": x}, [spec], 0)["x"], x[np.newaxis])


def test_text_may_lack_that_axis_too():
    assert conform({"x": np.array("a b")}, [InputSpec("x", TEXT, ("N",))], 0)["x"].tolist() == ["a b"]


def test_only_one_axis_is_added():
    assert "an array with 4 axes" in refusal({"x": np.zeros((8, 8), np.float32)}, IMAGE)


TOKENS = "g (int64[N,L] ids, int64[N,L] kinds) => (float[N,L,4] y) {{ {} y = Add(a, b) }}"


def tokens(ids: str) -> tuple[InputSpec, ...]:
    return input_specs(
        parse(
            TOKENS.format(f"{ids} k = Cast<to=6>(kinds) b = Gather(segments, k)"),
            words=np.zeros((50, 4), np.float32),
            segments=np.zeros((2, 4), np.float32),
        )
    )


@pytest.mark.parametrize("bad", [50, -51, 70_000])
def test_a_token_that_the_embedding_lacks_is_told_with_the_range(bad):
    sample = {"ids": np.array([[1, bad, 49]]), "kinds": np.array([[0, 1, 1]])}
    message = refusal(sample, *tokens("a = Gather(words, ids)"))
    assert message.startswith(f"samples[37], input 'ids': holds {bad}, and 1 of 3 values lie outside of the table")
    assert "it has 50 rows, so give 0 to 49 (-50 to -1 count from its end)" in message


def test_the_range_of_each_input_is_its_own():
    specs = tokens("a = Gather(words, ids)")
    assert [spec.rows for spec in specs] == [50, 2]
    sample = {"ids": np.array([[1, -50, 49]]), "kinds": np.array([[0, 2, 1]])}
    assert "input 'kinds': holds 2" in refusal(sample, *specs)
    assert conform(sample | {"kinds": np.array([[0, -2, 1]])}, specs, 0)


def test_tokens_may_be_moved_often():
    moves = "".join(f"i{i + 1} = Identity(i{i}) " for i in range(1500))
    assert tokens(f"i0 = Identity(ids) {moves} a = Gather(words, i1500)")[0].rows == 50


def test_what_is_computed_of_tokens_is_not_checked():
    ids, kinds = tokens("m = Constant<value = int64 {49}>() i = Min(ids, m) a = Gather(words, i)")
    assert (ids.rows, kinds.rows) == (None, 2)


def test_unsigned_numbers_have_no_negative_rows():
    spec = InputSpec("x", np.dtype(np.uint8), ("N",), 200)
    assert "holds 200" in refusal({"x": np.array([3, 200], np.uint8)}, spec)
    assert conform({"x": np.array([3, 199], np.uint8)}, [spec], 0)


def test_one_symbol_has_one_value_within_a_sample():
    sample = {"ids": np.zeros((1, 4), np.int64), "mask": np.zeros((1, 5), np.int64)}
    message = refusal(sample, *PAIR)
    assert "input 'mask': has shape (1, 5), expected (B, T) with T = 4 as in input 'ids'" in message


def test_an_open_dimension_takes_any_size():
    spec = InputSpec("x", np.dtype(np.float32), (None, 2))
    assert conform({"x": np.zeros((0, 2), np.float32)}, [spec], 0)["x"].shape == (0, 2)


def test_missing_and_unknown_names_are_both_named():
    message = refusal({"ids": np.zeros((1, 4), np.int64), "label": 3}, *PAIR)
    assert "input 'mask' is missing" in message
    assert "'label' is not an input" in message
    assert "'ids' int64(B, T)" in message


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_counted(bad):
    x = np.zeros((1, 3, 8, 8), np.float32)
    x[0, 1, 2] = bad
    assert "8 of 192 values are NaN or infinite as float32" in refusal({"x": x}, IMAGE)


@pytest.mark.parametrize(
    ("value", "declared"),
    [
        ("float64", "float32"),
        ("float32", "float16"),
        ("float64", "float16"),
        ("float32", "bfloat16"),
        (">f4", "float32"),
        (">i8", "int64"),
    ],
)
def test_dtypes_that_are_converted(value, declared):
    spec = InputSpec("x", np.dtype(declared), (3,))
    array = np.array([1, 2, 3]).astype(value)
    converted = conform({"x": array}, [spec], 0)["x"]
    assert converted.dtype == np.dtype(declared)
    assert converted.dtype.isnative
    np.testing.assert_array_equal(converted.astype(np.float64), [1, 2, 3])


@pytest.mark.parametrize(
    ("value", "declared"),
    [("int32", "int64"), ("float32", "float64"), ("uint8", "float32"), ("bool", "uint8"), ("float16", "float32")],
)
def test_other_dtypes_are_refused_by_name(value, declared):
    spec = InputSpec("x", np.dtype(declared), (3,))
    assert f"has dtype {value}, expected {declared}" in refusal({"x": np.zeros(3, value)}, spec)


def test_a_value_too_large_for_float16_is_reported():
    spec = InputSpec("x", np.dtype(np.float16), (2,))
    assert "1 of 2 values are NaN or infinite as float16" in refusal({"x": np.array([1.0, 1e6])}, spec)


def test_bfloat16_values_are_checked_too():
    spec = InputSpec("x", np.dtype(ml_dtypes.bfloat16), (2,))
    assert "NaN or infinite" in refusal({"x": np.array([1.0, np.nan])}, spec)


@pytest.mark.parametrize("value", [None, [[1], [1, 2]], object()])
def test_what_is_no_array_is_refused(value):
    assert refusal({"x": value}, IMAGE).startswith("samples[37], input 'x': ")


@pytest.mark.parametrize("value", [["a", "ünlü"], np.array(["a", "ünlü"], object), np.array([["a"], ["ünlü"]]).T[0]])
def test_strings_have_room_for_the_longest(value):
    result = conform({"x": value}, [InputSpec("x", TEXT, (None,))], 0)["x"]
    assert result.dtype.str in ("<U1", "<U4")
    assert result.tolist() == np.asarray(value).tolist()


def test_an_empty_string_has_bytes_too():
    assert conform({"x": [""]}, [InputSpec("x", TEXT, (1,))], 0)["x"].dtype.itemsize == 4


@pytest.mark.parametrize("value", [[1, 2], [b"a"], np.array(["a", 1], object)])
def test_what_is_no_string_is_refused(value):
    assert "expected an array of str" in refusal({"x": value}, InputSpec("x", TEXT, (None,)))


def test_scalars_keep_rank_zero():
    spec = InputSpec("x", np.dtype(np.float32), ())
    assert conform({"x": 2.5}, [spec], 0)["x"].shape == ()


def test_the_specs_of_a_model_leave_out_initialized_inputs():
    x = ir.Value(name="x", shape=ir.Shape(["N", 3, None]), type=ir.TensorType(ir.DataType.FLOAT))
    w = ir.Value(name="w", shape=ir.Shape([3]), type=ir.TensorType(ir.DataType.FLOAT))
    w.const_value = ir.tensor(np.zeros(3, np.float32), name="w")
    graph = ir.Graph([x, w], [x], nodes=[], initializers=[w], opset_imports={"": 21}, name="g")
    assert input_specs(ir.Model(graph, ir_version=10)) == (InputSpec("x", np.dtype(np.float32), ("N", 3, None)),)


@pytest.mark.parametrize(
    ("kind", "shape", "reason"),
    [
        (ir.SequenceType(ir.TensorType(ir.DataType.FLOAT)), ir.Shape([1]), "needs a tensor"),
        (ir.TensorType(ir.DataType.FLOAT), None, "declares no shape"),
    ],
)
def test_inputs_that_cannot_be_calibrated_are_refused(kind, shape, reason):
    x = ir.Value(name="x", shape=shape, type=kind)
    graph = ir.Graph([x], [x], nodes=[], opset_imports={"": 21}, name="g")
    with pytest.raises(CalibrationError, match=reason):
        input_specs(ir.Model(graph, ir_version=10))


def test_nan_stands_for_what_a_model_fills_in_itself() -> None:
    graph = "g (float[N, 2] x) => (float[N, 2] y) { m = IsNaN(x)  y = Where(m, zero, x) }"
    specs = input_specs(parse(graph, zero=np.array(0, np.float32)))
    row = np.array([[np.nan, 1.0]], np.float32)
    np.testing.assert_array_equal(conform({"x": row}, specs, 0)["x"], row)
    with pytest.raises(CalibrationError, match="1 of 2 values are NaN or infinite"):
        conform({"x": np.array([[np.nan, np.inf]], np.float32)}, specs, 0)
