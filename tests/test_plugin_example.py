"""examples/plugin, installed as pip does it: the command line finds all that it adds, and a compile uses it."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import proto, samples, weight

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "plugin"
NETWORK = """g (float[N,16] x) => (float[N,6] y) {
    h = Gemm(x, w1, b1)  s = HardSwish(h)  t = Gemm(s, w2, b2)  r = Relu(t)  c = Clip(r, low)  y = Gemm(c, w3, b3)
}"""

# What is compiled is compared in speed for a moment.
END, PROGRAM = (
    "<end of a command>",
    """
import json, sys
from ptqc.cli.main import main
from ptqc.execution import speed
speed.SECONDS = 0.02
for words in json.loads(sys.argv[1]):
    if code := main(words):
        sys.exit(code)
    print("<end of a command>", end="")
""",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with the example in it: its modules, its metadata and its entry points."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(EXAMPLE / "ptqc_example", folder / "ptqc_example")
    metadata = folder / f"ptqc_example-{project['version']}.dist-info"
    metadata.mkdir()
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (metadata / "METADATA").write_text(head, encoding="utf-8")
    groups = project["entry-points"].items()
    lines = [f"[{group}]\n" + "\n".join(f"{name} = {value}" for name, value in of.items()) for group, of in groups]
    (metadata / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder


def ptqc(site: Path, *commands: Sequence[object]) -> list[str]:
    """What commands print, one after the other in a process that finds the packages of `site`."""
    paths = os.pathsep.join([str(site), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands, default=str)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *printed, rest = done.stdout.split(END)
    assert rest == ""
    return printed


def test_the_guide_shows_its_entry_points() -> None:
    guide = (ROOT / "docs" / "contributing" / "extending.md").read_text(encoding="utf-8")
    shown = tomllib.loads(guide.partition("```toml\n")[2].partition("```")[0])
    assert shown["project"] == {
        "entry-points": tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]
    }


@pytest.mark.slow
def test_the_commands_name_what_it_adds(site: Path) -> None:
    passes, doctor = ptqc(site, ["passes"], ["doctor", "--json"])
    assert "added by ptqc-example 1.0; --rewrite runs it" in passes
    findings = json.loads(doctor)["findings"]
    added = {one["what"] for one in findings if one["found"] == "added by ptqc-example 1.0"}
    assert added == {
        "rewrite drop-idle-clip",
        "format e5m2",
        "operator HardSwish",
        "observer three-sigma",
        "target listing",
    }


@pytest.mark.long
def test_a_compile_uses_all_of_it(site: Path, tmp_path: Path) -> None:
    constants = {"w1": weight(16, 64), "b1": weight(64, seed=1), "w2": weight(64, 32, seed=2), "b2": weight(32, seed=3)}
    model = proto(NETWORK, **constants, low=np.float32(0), w3=weight(32, 6, seed=4), b3=weight(6, seed=5))
    onnx.save(model, tmp_path / "model.onnx")
    np.savez(tmp_path / "data.npz", x=samples(16, count=24))
    out = tmp_path / "out"
    words = ["compile", tmp_path / "model.onnx", "--calibration", tmp_path / "data.npz", "-o", out, "-q"]
    named = ["--rewrite", "drop-idle-clip", "--observer", "three-sigma", "--target", "listing"]
    dumped = ["--activations", "integer", "--dump-passes", tmp_path / "dump", "--cache", tmp_path]
    ptqc(site, [*words, *named, *dumped], ["verify", out])
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert {one["kind"] for one in manifest["plugins"]} == {"rewrite", "format", "operator", "observer", "target"}
    assert any(note["step"] == "drop-idle-clip" for note in manifest["notes"])
    assert manifest["float_operators"] == {}  # HardSwish is looked up
    (solved,) = (tmp_path / "dump").glob("*solve-weights.json")
    assert "e5m28" in solved.read_text(encoding="utf-8")
