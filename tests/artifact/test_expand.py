"""`ptqc expand`: the same integers in a file that loads at once, delivered as a whole or not at all."""

import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import compiled, proto, samples, weight
from mostly_slow import mostly_slow

import ptqc
from ptqc.artifact import expand as expanding
from ptqc.artifact import folder as publishing
from ptqc.artifact.folder import GOLDEN, MANIFEST, MODEL, Artifact
from ptqc.artifact.golden import Golden
from ptqc.cli.main import main
from ptqc.errors import IntegrityError, Interrupted, ModelError, UsageError, VerificationError
from ptqc.execution.loading import LoadCost, measure_load
from ptqc.execution.onnxruntime import Runner
from ptqc.ir import external

COST = LoadCost(2.5, 1_250_000)


@pytest.fixture
def untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is loaded to be timed, which takes seconds."""
    monkeypatch.setattr(expanding, "measure_load", lambda _path: COST)


def golden_of(artifact: Artifact, path: Path) -> bool:
    """Whether a file gives the golden samples of an artifact, to the last bits of float32."""
    golden, runner = Golden.read(artifact.folder / GOLDEN), Runner(path)
    pairs = zip(map(runner.run, golden.inputs), golden.outputs, strict=True)
    return all(np.allclose(got[name], wanted[name], rtol=0, atol=1e-6) for got, wanted in pairs for name in wanted)


@pytest.mark.long
def test_the_command_and_what_it_tells(
    small: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expanding, "measure_load", partial(measure_load, processes=1))
    assert main(["expand", str(small.folder), "-o", str(tmp_path / "new"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["path"] == str(tmp_path / "new" / MODEL)
    manifest = document["manifest"]
    packed, expanded = (manifest["expanded"][form] for form in ("packed", "expanded"))
    assert (packed["bytes"], expanded["bytes"]) == (small.path.stat().st_size, Path(document["path"]).stat().st_size)
    assert 0 < expanded["load"]["milliseconds"] < packed["load"]["milliseconds"]
    assert 0 < expanded["load"]["memory_bytes"] <= packed["load"]["memory_bytes"]
    assert manifest["expanded"]["from"] == small.manifest["files"][MODEL]
    assert manifest["file"]["oldest_onnxruntime"] == small.manifest["file"]["oldest_onnxruntime"]
    assert golden_of(small, Path(document["path"]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [GOLDEN, MANIFEST, MODEL]
    assert main(["verify", str(tmp_path / "new")]) == 0
    assert capsys.readouterr().out.startswith("files       2 have the SHA-256 of the manifest\ngolden      model.onnx ")


@pytest.mark.usefixtures("untimed")
def test_in_python(small: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = small.expand(tmp_path / "new")
    assert made.path == tmp_path / "new" / MODEL
    assert str(made) == (
        f"packed      {small.path.stat().st_size:,} bytes; loads in 2.5 ms of CPU time with 1.2 MB of memory\n"
        f"expanded    {made.path.stat().st_size:,} bytes; loads in 2.5 ms of CPU time with 1.2 MB of memory\n"
        "golden      the expanded model.onnx gives the recorded outputs on 2 golden samples"
    )
    again = ptqc.expand(small, output=tmp_path / "again")
    assert (again.manifest, again.path.read_bytes()) == (made.manifest, made.path.read_bytes())
    assert main(["expand", str(small.folder), "-o", str(tmp_path / "third")]) == 0
    assert "go on shipping the packed file" in capsys.readouterr().out


@pytest.mark.usefixtures("untimed")
def test_what_is_refused(small: Artifact, tmp_path: Path) -> None:
    copy = Artifact(Path(shutil.copytree(small.folder, tmp_path / "out")))
    with pytest.raises(UsageError, match=r"is not a folder that `ptqc compile` wrote: it has no manifest\.json"):
        ptqc.expand(tmp_path, output=tmp_path / "new")
    with pytest.raises(UsageError, match=r"lies in the artifact .* give a folder outside of it"):
        copy.expand(copy.folder / "expanded")
    with pytest.raises(UsageError, match="lies in the artifact"):
        copy.expand(copy.folder, force=True)
    with pytest.raises(UsageError, match="exists; give another one"):
        small.expand(copy.folder)
    with pytest.raises(UsageError, match="was not written by `ptqc expand`"):
        small.expand(copy.folder, force=True)
    assert publishing.load(copy.folder) == copy
    made = small.expand(tmp_path / "new")
    with pytest.raises(UsageError, match=r"exists; give another one with -o, or --force"):
        small.expand(made.folder)
    with pytest.raises(UsageError, match=r"was written by `ptqc expand`: give the folder .* or .*/new/model\.onnx"):
        ptqc.load(made.folder)
    with pytest.raises(UsageError, match="leave out --model and --runtime"):
        ptqc.verify(made.folder, model="m.onnx")
    made.path.write_bytes(b"")
    with pytest.raises(IntegrityError, match="was changed"):
        ptqc.verify(made.folder)
    assert ptqc.verify(small.expand(made.folder, force=True).folder).checks["files"].startswith("2 have")


@pytest.mark.usefixtures("untimed")
def test_other_outputs_are_not_delivered(small: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = expanding.write_out

    def wrong(*arguments: object) -> onnx.ModelProto:
        model = right(*arguments)  # type: ignore[arg-type]
        scale = next(tensor for tensor in model.graph.initializer if tensor.data_type == 1 and len(tensor.raw_data) > 8)
        scale.raw_data = (np.frombuffer(scale.raw_data, np.float32) * np.float32(1.5)).tobytes()
        return model

    monkeypatch.setattr(expanding, "write_out", wrong)
    with pytest.raises(VerificationError, match=r"of the expanded model\.onnx differs .* nothing was delivered"):
        small.expand(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_a_packed_file_that_memory_does_not_take_is_expanded(
    small: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(path: Path) -> LoadCost:
        if path == small.path:
            raise ModelError("needs more memory than there is")
        return COST

    monkeypatch.setattr(expanding, "measure_load", load)
    made = small.expand(tmp_path / "new")
    assert made.manifest["expanded"]["packed"]["load"] is None
    assert str(made).startswith(f"packed      {small.path.stat().st_size:,} bytes; is not loaded here\nexpanded")


@pytest.mark.usefixtures("untimed")
def test_a_full_disk_changes_nothing(small: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = small.expand(tmp_path / "new")
    before = made.path.read_bytes()

    def full(*_given: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(publishing, "_write_through", full)
    with pytest.raises(Interrupted, match="No space left on device; nothing was changed there"):
        small.expand(made.folder, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert made.path.read_bytes() == before


@pytest.mark.usefixtures("untimed")
@pytest.mark.parametrize("operators", mostly_slow(["standard", "onnxruntime", "dequantize"], "standard"))
def test_larger_models_get_two_files(operators: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external, "IN_MEMORY_LIMIT", 4000)
    monkeypatch.setattr(expanding, "MAPPED_FROM", 4000)
    graph = "g (float[N,64] x) => (float[N,96] y) { a = MatMul(x, w) r = Relu(a) y = MatMul(r, v) }"
    model = proto(graph, w=weight(64, 96), v=weight(96, 96))
    packed = compiled(model, samples(64), tmp_path, bits=(4,), activations="float", operators=operators)
    made = packed.expand(tmp_path / "new")
    assert sorted(path.name for path in made.folder.iterdir()) == [GOLDEN, MANIFEST, "model.data", MODEL]
    nodes = {node.op_type for node in onnx.load(made.path).graph.node}
    products = {
        "standard": {"MatMul"},
        "onnxruntime": {"MatMulNBits"},
        "dequantize": {"DequantizeLinear", "MatMul", "Max"},
    }
    assert nodes == products[operators] | {"Relu"}
    assert golden_of(packed, made.path)
    assert made.expanded.bytes == sum((made.folder / name).stat().st_size for name in (MODEL, "model.data"))
    assert ptqc.verify(made.folder).checks["files"].startswith("3 have")


def test_a_file_that_does_not_load_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / MODEL).write_bytes(b"no model")
    with pytest.raises(ModelError, match=r"loading .*model\.onnx in ONNX Runtime failed"):
        measure_load(tmp_path / MODEL)
