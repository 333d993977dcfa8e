"""Every input that a network does not take is refused with what was given, what is expected, and what to do."""

import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from compiling import proto, weight

from ptqc.artifact.folder import Artifact
from ptqc.errors import UsageError
from ptqc.execution.feeds import CheckedSession

X = np.ones((2, 3, 4, 4), np.float32)


def session(model: onnx.ModelProto) -> CheckedSession:
    return CheckedSession(ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]), "m.onnx")


@pytest.fixture(scope="module")
def image() -> CheckedSession:
    return session(proto("g (float[N,3,4,4] x, int64[N] k) => (float[N,3,4,4] y) { f = Cast<to=1>(k) y = Relu(x) }"))


def given(**changes: Any) -> dict[str, Any]:
    return {"x": X, "k": np.zeros(2, np.int64), **changes}


def test_what_fits_is_computed(image: CheckedSession) -> None:
    assert np.array_equal(image.run(given())["y"], X)
    strided = np.ones((2, 3, 4, 8), np.float32)[..., ::2]
    assert np.array_equal(image.run(given(x=strided))["y"], X)
    assert np.array_equal(image.run(given(x=ort.OrtValue.ortvalue_from_numpy(X)))["y"], X)


@pytest.mark.parametrize(
    ("feeds", "expected"),
    [
        (X, "the inputs are a ndarray; give a dict of arrays by the names of the inputs"),
        ({}, "inputs none were given; the model takes ['x', 'k']: give 'x', 'k'"),
        ({"x": X}, "inputs 'x' were given; the model takes ['x', 'k']: give 'k'"),
        (given(z=X), "inputs 'x', 'k', 'z' were given; the model takes ['x', 'k']: leave out 'z'"),
        ({"X": X, "k": X}, "the model takes ['x', 'k']: give 'x' and leave out 'X'"),
        (given(x=X.tolist()), "input 'x' is a list; expected a numpy array, float32 [N, 3, 4, 4]: give np.asarray("),
        (given(k=3), "input 'k' is a int; expected a numpy array, int64 [N]: give np.asarray(value, np.int64)"),
        (given(x=X.astype(np.float64)), "expected float32 [N, 3, 4, 4]: convert it with .astype(np.float32)"),
        (given(x=X.astype(">f4")), "input 'x' is >f4 [2, 3, 4, 4]; expected float32 [N, 3, 4, 4]: convert it"),
        (given(k=np.zeros(2, np.int32)), "input 'k' is int32 [2]; expected int64 [N]: convert it with .astype("),
        (given(x=X[0]), "input 'x' is float32 [3, 4, 4]; expected float32 [N, 3, 4, 4]: the axis of samples is"),
        (given(x=X[0, 0]), "expected float32 [N, 3, 4, 4]: give 4 axes in place of 2"),
        (given(x=X.transpose(0, 2, 3, 1)), "channels come first, value.transpose(0, 3, 1, 2)"),
        (
            given(k=np.zeros(3, np.int64)),
            "inputs differ in 'N', which the model declares to be one size: 'x' has 2, 'k' has",
        ),
        (given(x=X[:, :2]), "input 'x' is float32 [2, 2, 4, 4]; expected float32 [N, 3, 4, 4]: give 3 along axis 1"),
    ],
)
def test_what_does_not_fit_says_what_to_do(image: CheckedSession, feeds: Any, expected: str) -> None:
    with pytest.raises(UsageError, match=re.escape(expected)):
        image.run(feeds)


def test_what_cannot_be_computed_says_what_was_given() -> None:
    table = session(proto("g (int64[N] i) => (float[N,4] y) { y = Gather(t, i) }", t=weight(3, 4)))
    assert table.run({"i": np.zeros(2, np.int64)})["y"].shape == (2, 4)
    with pytest.raises(UsageError, match=r"m\.onnx does not run on these inputs \(i \[2\]\): .*original model"):
        table.run({"i": np.array([0, 9], np.int64)})


def test_texts_and_types_that_numpy_lacks_are_taken() -> None:
    words = session(proto("g (string[N] w) => (string[N] y) { y = Identity(w) }"))
    assert words.run({"w": np.array(["a", "b"])})["y"].tolist() == ["a", "b"]
    assert words.run({"w": np.array(["a", "b"], object)})["y"].tolist() == ["a", "b"]
    with pytest.raises(
        UsageError, match=re.escape("input 'w' is int64 [2]; expected string [N]: convert it with .ast")
    ):
        words.run({"w": np.array([1, 2])})
    with pytest.raises(UsageError, match=re.escape("expected a numpy array, string [N]: give np.asarray(value)")):
        words.run({"w": ["a"]})
    small = session(proto("g (bfloat16[N,2] b) => (float[N,2] y) { y = Cast<to=1>(b) }"))
    with pytest.raises(UsageError, match=re.escape("expected bfloat16 [N, 2]: give 2 along axis 1")):
        small.run({"b": np.ones((1, 3), ml_dtypes.bfloat16)})


def test_an_input_with_an_initializer_can_be_left_out() -> None:
    model = proto("g (float[N] x, float[1] c) => (float[N] y) { y = Add(x, c) }", c=np.full(1, 2, np.float32))
    optional = session(model)
    one = np.ones(3, np.float32)
    assert optional.run({"x": one})["y"].tolist() == [3, 3, 3]
    assert optional.run({"x": one, "c": np.full(1, 5, np.float32)})["y"].tolist() == [6, 6, 6]
    with pytest.raises(UsageError, match=re.escape("input 'c' is float32 [2]; expected float32 [1]")):
        optional.run({"x": one, "c": np.ones(2, np.float32)})


def test_an_artifact_raises_the_same(tmp_path: Path) -> None:
    onnx.save(proto("g (float[N,3] x) => (float[N,3] y) { y = Relu(x) }"), tmp_path / "model.onnx")
    (tmp_path / "manifest.json").write_text('{"ptqc": "0", "files": {}, "cpu": {"session_option_without_vnni": {}}}')
    with pytest.raises(UsageError, match=r"input 'x' is float32 \[3\]; .*value\[np\.newaxis\]"):
        Artifact(tmp_path).run({"x": np.ones(3, np.float32)})
