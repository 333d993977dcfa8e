"""The commands of the pages on runtimes run as they stand, but for budgets and image sizes: the network is tiny."""

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import proto, quick, residual, weight
from PIL import Image

from ptqc.cli.main import main
from ptqc.runtime.foreign import MODULES, runtime_named

ROOT = Path(__file__).resolve().parent.parent
COMMAND = re.compile(r"^ptqc (?:compile|resolve|verify|compare) .*|`(ptqc [^`]+)`", re.MULTILINE)
IMAGES = 12


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with models of images and of frames, and with data, where commands run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PTQC_CACHE", str(tmp_path / "cache"))
    onnx.save(residual(), tmp_path / "model.onnx")
    (tmp_path / "images").mkdir()
    rng = np.random.default_rng(0)
    for number in range(IMAGES):
        pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number}.png")
    onnx.save(keywords(), tmp_path / "keywords.onnx")
    np.savez(tmp_path / "spectrograms.npz", x=rng.standard_normal((IMAGES, 3, 8, 8)).astype(np.float32))
    np.savez(tmp_path / "windows.npz", x=rng.standard_normal((IMAGES, 5, 12)).astype(np.float32))
    return tmp_path


def keywords() -> onnx.ModelProto:
    """A network with a convolution along time."""
    graph = """g (float[N,5,12] x) => (float[N,4] y) {
        a = Conv (x, w) b = Relu(a) m = GlobalAveragePool(b) h = Flatten(m) y = Gemm <transB = 1> (h, v)
    }"""
    return proto(graph, w=weight(64, 5, 3), v=weight(4, 64))


def commands(page: Path) -> list[list[str]]:
    """Arguments of each command of ptqc in a page, in blocks and in its text."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    return [shlex.split(match[1] or match[0])[1:] for match in COMMAND.finditer(text)]


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        pytest.param("qdq", {"compile", "resolve", "verify", "compare"}, marks=pytest.mark.long),
        ("litert", {"compile", "resolve", "verify", "compare"}),
        pytest.param("microcontrollers", {"compile", "resolve", "verify"}, marks=pytest.mark.long),
    ],
)
def test_it_runs(name: str, kinds: set[str], room: Path) -> None:
    result = commands(ROOT / "docs" / "deploy" / f"{name}.md")
    named = {runtime for runtime in MODULES if any(runtime in arguments for arguments in result)}
    for runtime in named:
        pytest.importorskip(runtime_named(runtime).module, reason=f"needs pip install 'ptqc[{runtime}]'")
    assert {arguments[0] for arguments in result} == kinds
    with quick():
        for arguments in result:
            if arguments[0] == "compile" and (room / "out").is_dir():
                shutil.rmtree(room / "out")
            here = [re.sub(r"^\d+%$", "90%", each) for each in arguments if each not in ("--preprocessing", "imagenet")]
            assert main(here) == 0, arguments
