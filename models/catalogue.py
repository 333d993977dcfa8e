"""Reading the catalogue: what each committed file is, and what it must hash to."""

import hashlib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Committed:
    """A file beside this one, and the SHA-256 that it must have."""

    file: str
    sha256: str

    @property
    def path(self) -> Path:
        """Where the committed file is."""
        return HERE / self.file


@dataclass(frozen=True)
class Network(Committed):
    """A trained network: its weights, and the score in `unit` that it reaches in float."""

    name: str
    weights: int
    task: str
    unit: str
    score: float
    recipe: str


@dataclass(frozen=True)
class Arrays(Committed):
    """Samples for calibration or evaluation."""

    holds: str


def _table(kind: str) -> list[dict[str, Any]]:
    with (HERE / "catalogue.toml").open("rb") as file:
        return tomllib.load(file)[kind]


def networks() -> dict[str, Network]:
    """All networks of `catalogue.toml` by name."""
    return {row["name"]: Network(**row) for row in _table("network")}


def arrays() -> list[Arrays]:
    """All array files of `catalogue.toml`."""
    return [Arrays(**row) for row in _table("data")]


def digest(path: Path) -> str:
    """SHA-256 of a file in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
