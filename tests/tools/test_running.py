"""`ptqc run`: the outputs that are written are those of the model."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from compiling import compiled, product, proto, samples, weight

import ptqc
from ptqc.artifact.folder import Artifact
from ptqc.cli.main import main
from ptqc.errors import CalibrationError, ModelError, UsageError

Change = Callable[[onnx.ModelProto], None]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return compiled(product(), samples(16), tmp_path_factory.mktemp("run"))


def expected(path: Path, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"x": x})
    return np.asarray(result)


def test_all_outputs_in_one_file(made: Artifact, tmp_path: Path) -> None:
    x = samples(16, count=7, seed=3)
    result = ptqc.run(made.folder, x, output=tmp_path / "y.npz")
    with np.load(tmp_path / "y.npz") as archive:
        np.testing.assert_allclose(archive["y"], expected(made.path, x), rtol=1e-5, atol=1e-6)
    assert result.samples == 7
    assert result.runtime.startswith("ONNX Runtime")


def test_a_file_per_sample_is_named_like_its_own(made: Artifact, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    x = samples(16, count=3)
    for name, row in zip(("first", "second", "third"), x, strict=True):
        np.savez(tmp_path / "in" / f"{name}.npz", x=row[None])
    ptqc.run(made.path, tmp_path / "in", output=tmp_path / "out")
    for name, row in zip(("first", "second", "third"), x, strict=True):
        with np.load(tmp_path / "out" / f"{name}.npz") as archive:
            np.testing.assert_allclose(archive["y"], expected(made.path, row[None]), rtol=1e-5, atol=1e-6)


def test_samples_without_names_are_numbered(made: Artifact, tmp_path: Path) -> None:
    ptqc.run(made.path, samples(16, count=11), output=tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir())[:3] == ["00.npz", "01.npz", "02.npz"]


def test_outputs_of_different_shapes_take_a_folder(tmp_path: Path) -> None:
    model = proto("g (float[N,L,8] x) => (float[N,L,8] y) { y = MatMul(x, w) }", w=weight(8, 8))
    onnx.save(model, tmp_path / "m.onnx")
    feeds = [{"x": samples(length, 8, count=1)} for length in (3, 5)]
    with pytest.raises(UsageError, match=r"output 'y' has the shape \(1, 5, 8\) for samples\[1\], .* give a folder"):
        ptqc.run(tmp_path / "m.onnx", feeds, output=tmp_path / "y.npz")
    assert not (tmp_path / "y.npz").exists()
    result = ptqc.run(tmp_path / "m.onnx", feeds, output=tmp_path / "y")
    assert result.to_json()["shapes"] == {"y": [[1, 3, 8], [1, 5, 8]]}


def test_outputs_with_different_numbers_of_rows_take_a_folder(tmp_path: Path) -> None:
    """As detections have: in one file nothing would say where a sample's rows end."""
    model = proto("g (float[N,4] x) => (int64[K,2] y) { t = NonZero(x) y = Transpose<perm=[1, 0]>(t) }")
    onnx.save(model, tmp_path / "m.onnx")
    feeds = [{"x": np.tri(1, 4, k, np.float32)} for k in (1, 2)]
    with pytest.raises(UsageError, match=r"output 'y' has the shape \(3, 2\) for samples\[1\], \(2, 2\) for the first"):
        ptqc.run(tmp_path / "m.onnx", feeds, output=tmp_path / "y.npz")


def test_the_command(made: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "x.npz", x=samples(16, count=4))
    command = ["run", str(made.folder), str(tmp_path / "x.npz"), "-o"]
    assert main([*command, str(tmp_path / "y.npz"), "--threads", "1"]) == 0
    assert "4 samples in ONNX Runtime" in capsys.readouterr().out
    assert main([*command, str(tmp_path / "z.npz"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shapes"] == {"y": [[1, 32]]}
    assert main([*command, str(tmp_path / "y.npz")]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_samples_that_do_not_fit(made: Artifact, tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=r"samples\[0\]"):
        ptqc.run(made.folder, samples(5), output=tmp_path / "y.npz")


def test_each_sample_is_read_when_it_is_run_and_none_is_kept(
    made: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    written = []

    def data() -> Iterator[dict[str, np.ndarray]]:
        for _ in range(12):
            written.append(sum(1 for _ in tmp_path.glob(".ptqc-run-*/outputs/*.npz")))
            yield {"x": samples(16, count=1)}

    ptqc.run(made.path, data(), output=tmp_path / "out")
    assert written == list(range(12))
    assert {path.name for path in (tmp_path / "out").iterdir()} == {f"{number:02}.npz" for number in range(12)}


def test_a_faulty_sample_leaves_nothing_behind(made: Artifact, tmp_path: Path) -> None:
    data = [{"x": samples(16, count=1)}, {"x": samples(5, count=1)}]
    with pytest.raises(CalibrationError, match=r"samples\[1\], input 'x'"):
        ptqc.run(made.path, data, output=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_no_samples(made: Artifact, tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="holds no samples"):
        ptqc.run(made.path, iter(()), output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_functions_that_explode_are_refused(tmp_path: Path) -> None:
    head = '<domain: "f", opset_import: ["": 17, "f": 1]>'
    calls = "\n".join(f"{head} f{i} (x) => (y) {{ a = f.f{i + 1}(x) y = f.f{i + 1}(a) }}" for i in range(24))
    last = '<domain: "f", opset_import: ["": 17]> f24 (x) => (y) { y = Relu(x) }'
    main_graph = '<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[N,4] x) => (float[N,4] y) { y = f.f0(x) }'
    onnx.save(onnx.parser.parse_model(f"{main_graph}\n{calls}\n{last}"), tmp_path / "model.onnx")
    with pytest.raises(ModelError, match="expand to"):
        ptqc.run(tmp_path / "model.onnx", samples(4, count=2), output=tmp_path / "y.npz")


def twice(model: onnx.ModelProto) -> None:
    model.graph.node.append(model.graph.node[0])


def map_input(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.map_type.key_type = onnx.TensorProto.INT64


def typed(number: int) -> Change:
    def change(model: onnx.ModelProto) -> None:
        model.graph.input[0].type.tensor_type.elem_type = number

    return change


def named(name: str) -> Change:
    def change(model: onnx.ModelProto) -> None:
        model.graph.node[0].output[0] = model.graph.output[0].name = name

    return change


def sparse(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.add(name="a", type=onnx.AttributeProto.SPARSE_TENSOR)


def function(model: onnx.ModelProto) -> None:
    model.functions.add(name="f", domain="d", input=["a", "a"], output=["c"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (twice, "m.onnx: is damaged, .*'y' is redeclared"),
        (map_input, "m.onnx: is damaged, .*Map types are not supported"),
        (typed(99), "m.onnx: is damaged, .*99 is not a valid DataType"),
        (typed(0), "input 'x': has type UNDEFINED"),
        (named("a" * 70_000), "m.onnx: the name 'a+...' has 70,000 bytes"),
        (named("a\0b"), "m.onnx: the name .* has a NUL in it"),
        (sparse, "m.onnx: is damaged, .*Sparse tensors are not supported"),
        (function, "m.onnx: is damaged"),
    ],
)
def test_malformed_models_are_refused(tmp_path: Path, change: Change, message: str) -> None:
    model = proto("g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }")
    change(model)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises((ModelError, CalibrationError), match=message) as raised:
        ptqc.run(tmp_path / "m.onnx", samples(4, count=2), output=tmp_path / "y.npz")
    assert "\n" not in str(raised.value)
