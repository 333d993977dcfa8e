"""examples/web: what a compiled file gives in onnxruntime-web is what it gave when compiled; changes are noticed."""

import functools
import http.server
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ptqc.artifact.folder import Artifact

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "web"
MODULES = EXAMPLE / "node_modules"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FOUND = re.compile(r"largest difference (\S+) of the largest output")


@pytest.fixture
def folder(small: Artifact, tmp_path: Path) -> Path:
    """The example with an artifact in it, as its README says."""
    if not MODULES.is_dir():
        pytest.skip("needs onnxruntime-web: npm install --prefix examples/web")
    for path in EXAMPLE.iterdir():
        (tmp_path / path.name).symlink_to(path)
    shutil.copytree(small.folder, tmp_path / "out")
    return tmp_path


def in_node(folder: Path) -> subprocess.CompletedProcess[str]:
    if shutil.which("node") is None:
        pytest.skip("needs Node")
    command = ["node", "--preserve-symlinks", "--preserve-symlinks-main", "check.mjs", "out"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


def test_in_node(folder: Path) -> None:
    done = in_node(folder)
    assert done.returncode == 0, done.stderr
    assert float(FOUND.search(done.stdout)[1]) < 1e-5  # type: ignore[index]


def test_a_changed_artifact_is_noticed(folder: Path) -> None:
    golden = {name: np.array(array) for name, array in load_file(folder / "out" / "golden.safetensors").items()}
    golden["0.output.y"][0, 0] += 0.5 * np.abs(golden["0.output.y"]).max()
    save_file(golden, folder / "out" / "golden.safetensors")
    done = in_node(folder)
    assert (done.returncode, done.stderr) == (1, "")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_given: object) -> None:
        """Say nothing."""


@pytest.fixture
def page(folder: Path) -> Iterator[str]:
    """The address of the example's page, on this machine alone."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/index.html"
        server.shutdown()


def test_in_a_browser(page: str) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("needs Chromium")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=60000", "--dump-dom"]
    done = subprocess.run([browser, *options, page], capture_output=True, text=True, check=False, timeout=120)
    result = re.search(r'<p id="result">(.*?)</p>', done.stdout)
    assert result is not None, done.stderr
    assert float(FOUND.search(result[1])[1]) < 1e-5  # type: ignore[index]
