"""The project as an index delivers it."""

import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "benchmarks"))

from wheels import copied  # noqa: E402


def wheel(folder: Path) -> Path:
    """The wheel of the source distribution, both built in `folder`."""
    with tarfile.open(_built("sdist", copied(folder / "tree"))) as file:
        file.extractall(folder, filter="data")
    (source,) = folder.glob("ptqc-*")
    return _built("wheel", source)


def _built(kind: str, tree: Path) -> Path:
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}('.'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return tree / done.stdout.splitlines()[-1]
