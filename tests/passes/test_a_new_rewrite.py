"""A rewrite that an installed package adds, from the command line to the delivered file."""

import json
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx
import pytest
from graphs import noise, parse

import ptqc
from ptqc import plugins
from ptqc.cli.main import main
from ptqc.errors import PassError, UsageError
from ptqc.ir.nodes import bypass, nodes_of
from ptqc.passes.base import Effect, Probed, Result
from ptqc.passes.registry import added_rewrites
from ptqc.plugins import PluginKind

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples" / "plugin"))

from ptqc_example.drop_idle_clip import DropIdleClip as DropIdleClip  # found here by its entry point

GROUP = PluginKind.REWRITE.group
GRAPH = """g (float[N, 4] x) => (float[N, 3] y) {
    h = MatMul(x, w)  a = Relu(h)  b = Clip(a, low)  y = MatMul(b, v)
}"""


@dataclass(frozen=True)
class DropEveryRelu:
    """Break the promise of a rewrite."""

    name: ClassVar[str] = "drop-every-relu"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, value: Probed) -> Result[Probed]:
        for node in nodes_of(value.model, "Relu"):
            bypass(node, node.inputs[0])  # type: ignore[arg-type]
        return value.rewritten([], unsaid=True)


class NoRewrite:
    """Something else that a package names."""


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that names its rewrites."""
    named = {"drop-idle-clip": "DropIdleClip", "drop-every-relu": "DropEveryRelu", "no-rewrite": "NoRewrite"}
    points = [EntryPoint(name, f"{__name__}:{kind}", GROUP) for name, kind in named.items()]
    missing = EntryPoint("missing", "no_such_package:Rewrite", GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [*points, missing] if group == GROUP else [])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(ptqc_proto(), path)
    return path


def ptqc_proto() -> onnx.ModelProto:
    import onnx_ir as ir

    model = parse(GRAPH, w=noise(4, 64), v=noise(64, 3, seed=1), low=np.float32(-1))
    return ir.to_proto(model)


def compiled(model: Path, rewrite: str) -> ptqc.Artifact:
    return ptqc.compile(
        model,
        calibration={"x": noise(16, 4)},
        output=model.parent / "out",
        rewrites=(rewrite,),
        cache=model.parent,
        force=True,
    )


def test_a_compile_runs_it_and_tells_of_it(model: Path) -> None:
    artifact = compiled(model, "drop-idle-clip")
    assert any(note["step"] == "drop-idle-clip" for note in artifact.manifest["notes"])
    operators = {node.op_type for node in onnx.load(artifact.folder / "model.onnx").graph.node}
    assert "Clip" not in operators


@pytest.mark.slow
def test_what_was_measured_before_it_was_edited_is_not_taken(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name stays the same, and so do the file and the data."""
    names = [compiled(model, "drop-idle-clip").manifest["measurements"]]
    names += [compiled(model, "drop-idle-clip").manifest["measurements"]]
    monkeypatch.setattr(DropIdleClip, "apply", lambda _, value: value.rewritten([]))
    names += [compiled(model, "drop-idle-clip").manifest["measurements"]]
    assert names[0] == names[1] != names[2]


@pytest.mark.slow
def test_a_dump_holds_what_every_pass_made(model: Path, tmp_path: Path) -> None:
    data, dump = {"x": noise(16, 4)}, tmp_path / "a" / "dump"
    ptqc.compile(
        model, calibration=data, output=tmp_path / "out", cache=tmp_path, dump_passes=dump, activations="integer"
    )
    dumped = {path.name.partition("_")[2]: path.read_text() for path in dump.iterdir()}
    assert {"fold-pad.txt", "calibrate.json", "solve-weights.json", "lower.txt", "plan.json"} <= set(dumped)
    assert set(json.loads(dumped["measure-sensitivity.json"])["weight_losses"]) == {"w", "v"}
    assert "y/weight" in dumped["lower.txt"]


def test_one_that_breaks_its_promise_is_named(model: Path) -> None:
    with pytest.raises(PassError, match="drop-every-relu changed output 'y'"):
        compiled(model, "drop-every-relu")


def test_the_command_lists_passes_with_effect_and_options(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    point = EntryPoint("drop-idle-clip", f"{__name__}:DropIdleClip", GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point])  # noqa: ARG005
    assert main(["passes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for effect, name in (("rewrite", "fold-pad"), ("rewrite", "drop-idle-clip"), ("decide", "calibrate")):
        assert any(line.split()[:2] == [effect, name] for line in lines)
    assert any(line.strip() == "observer = 'auto'" for line in lines)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("drop-idle-clips", "did you mean drop-idle-clip"),
        ("missing", "cannot be loaded"),
        ("no-rewrite", "is not a rewrite"),
    ],
)
def test_what_cannot_be_used_is_named(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        added_rewrites((name,))
