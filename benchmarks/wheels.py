"""Build sdist and wheel, check them, and use the wheel in clean environments of several Pythons and dependencies.

pip install -e '.[release]' && python benchmarks/wheels.py --pythons 3.11,3.12,3.13,3.14 --sbom build/sbom.json

Each Python gets the wheel with the newest versions of what it requires, and with the oldest that pyproject.toml allows
and that there are wheels for; in each, `wheel_job.py` compiles, opens, runs and verifies a small network. Pythons are
versions that uv finds on this machine, or paths. The software bill of materials (CycloneDX) lists the newest
environment of the first Python, with licences.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

from harness import Column, Row, command_line, machine, number, percent, print_results, say, write_results

ROOT = Path(__file__).resolve().parent.parent
JOB = Path(__file__).with_name("wheel_job.py")
RESOLUTIONS = {"newest": "highest", "oldest": "lowest-direct"}
REPORTED = ("onnxruntime", "onnx", "numpy", "highspy")
LIMIT = 1800
COLUMNS = (
    Column("Python", "python", str),
    Column("dependencies", "dependencies", str),
    Column("main job", "job", str),
    Column("s", "seconds", number(0)),
    Column("bytes, of the budget", "of_limit", percent(1)),
    *(Column(name, name, str) for name in REPORTED),
)


class Failed(Exception):
    """A command that did not end well; the message is the end of what it said."""


def called(*command: str | Path, **options: Any) -> str:
    """What a command prints. Raises Failed."""
    # What lies on PYTHONPATH would be found beside what is installed.
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(part) for part in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=LIMIT, env=clean, **options)
    if done.returncode:
        raise Failed(" ".join((done.stderr or done.stdout).split())[-600:])
    return done.stdout


def copied(tree: Path) -> Path:
    """What distributions are made of, apart from the project, which building would leave files in."""
    for room in ("ptqc", "passes", "codegen"):
        shutil.copytree(ROOT / room, tree / room, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    return tree


def distributions(folder: Path) -> tuple[Path, Path]:
    """The sdist of the project, and the wheel that is built of that sdist."""
    called(sys.executable, "-m", "build", "-q", "--outdir", folder, copied(folder / "tree"))
    (source,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return source, wheel


def check(source: Path, wheel: Path) -> None:
    """Raises Failed where an index would refuse them, or where what they have to contain is missing."""
    called(sys.executable, "-m", "twine", "check", "--strict", source, wheel)
    with zipfile.ZipFile(wheel) as archive, tarfile.open(source) as packed:
        names, sources = archive.namelist(), packed.getnames()
    for wanted in ("/licenses/LICENSE", "/METADATA", "ptqc/py.typed"):
        if not any(name.endswith(wanted) for name in names):
            raise Failed(f"{wheel.name} has no {wanted}")
    if not any(name.endswith("/LICENSE") for name in sources):
        raise Failed(f"{source.name} has no LICENSE")
    strangers = sorted(name for name in names if not name.startswith(("ptqc/", f"ptqc-{wheel.name.split('-')[1]}")))
    if strangers:
        raise Failed(f"{wheel.name} has more than the package: {', '.join(strangers[:5])}")


def environment(folder: Path, python: str, resolution: str, wheel: Path) -> Path:
    """The interpreter of a new environment with the wheel and what it requires. Raises Failed."""
    uv, required = (sys.executable, "-m", "uv", "-q"), folder / "required.txt"
    called(*uv, "venv", "--no-python-downloads", "--python", python, folder)
    interpreter = folder / "bin" / "python"
    into = ("--python", interpreter)
    # The lower bounds are those of wheels: what has to be compiled is another matter.
    choice = ("--resolution", resolution, "--only-binary", ":all:")
    called(*uv, "pip", "compile", *into, *choice, ROOT / "pyproject.toml", "-o", required)
    called(*uv, "pip", "install", *into, "-r", required)
    called(*uv, "pip", "install", *into, "--no-deps", wheel)
    return interpreter


def tried(python: str, dependencies: str, place: Path, wheel: Path) -> Row:
    """One row: what became of the job in a new environment."""
    row: Row = {"python": python, "dependencies": dependencies}
    place.mkdir()
    started = time.monotonic()
    try:
        interpreter = environment(place, python, RESOLUTIONS[dependencies], wheel)
        (place / "job").mkdir()
        done = json.loads(called(interpreter, JOB, place / "job", cwd=place).splitlines()[-1])
    except (Failed, subprocess.TimeoutExpired) as error:
        return {**row, "job": f"failed: {error}", "seconds": time.monotonic() - started}
    packages = done.pop("packages")
    return {**row, **done, "job": "passed", "packages": packages, **{name: packages[name] for name in REPORTED}}


def write_bill(path: Path, interpreter: Path) -> None:
    """The software bill of materials of an environment. Raises Failed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    options = ("--of", "JSON", "--mc-type", "library", "--output-reproducible")
    called(sys.executable, "-m", "cyclonedx_py", "environment", *options, "-o", path, interpreter)
    components = json.loads(path.read_text(encoding="utf-8"))["components"]
    unlicensed = [one["name"] for one in components if not one.get("licenses")]
    say(f"{path}: {len(components)} components, without a licence in their metadata: {', '.join(unlicensed) or 'none'}")


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--pythons", default=sys.executable, help="comma-separated; default: this one")
    parser.add_argument("--dependencies", default=",".join(RESOLUTIONS), help="newest, oldest")
    parser.add_argument("--sbom", type=Path, help="where to write the software bill of materials, CycloneDX JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        source, wheel = distributions(folder)
        check(source, wheel)
        say(f"{source.name} ({source.stat().st_size:,} bytes), {wheel.name} ({wheel.stat().st_size:,} bytes): checked")
        rows: list[Row] = []
        for python in arguments.pythons.split(","):
            for dependencies in arguments.dependencies.split(","):
                place = folder / str(len(rows))
                rows.append(tried(python, dependencies, place, wheel))
                say(f"Python {python}, {dependencies}: {rows[-1]['job']}")
                write_results(arguments.out, rows, machine())
                if arguments.sbom and len(rows) == 1:
                    write_bill(arguments.sbom, place / "bin" / "python")
                shutil.rmtree(place, ignore_errors=True)
        print_results(rows, COLUMNS, machine())
    return int(any(row["job"] != "passed" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
