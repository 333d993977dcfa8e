"""The exporter of well-known networks says what it can do, and what is missing."""

import subprocess
import sys
from pathlib import Path

MODELS = Path(__file__).resolve().parents[2] / "models"


def export_known(*arguments: str) -> subprocess.CompletedProcess[str]:
    # -S hides every installed package, so that the missing ones are missing everywhere.
    command = [sys.executable, "-S", str(MODELS / "export_known.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_list_names_each_network_and_its_package() -> None:
    done = export_known("--list")
    assert done.returncode == 0
    assert ["resnet18", "torchvision"] in [line.split() for line in done.stdout.splitlines()]


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    done = export_known("resnet18", "--random-weights", "--out", str(tmp_path))
    assert done.returncode == 1
    assert "torch is not installed" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_name_is_refused() -> None:
    assert export_known("resnet19").returncode == 2
