"""What the bytes of a result depend on beside its problem: the kind of processor and the versions of libraries."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

from ptqc.errors import TargetError
from ptqc.utils.machine import processor_features, processor_name
from ptqc.utils.version import __version__

# Those that results follow from, beside NumPy.
LIBRARIES = ("onnxruntime", "onnx-ir", "ml-dtypes")


@dataclass(frozen=True)
class Kind:
    """Of the process that works. products: the kernels that NumPy's library chose. source: digest of ptqc's files."""

    processor: str
    features: str
    products: str
    versions: Mapping[str, str]
    source: str

    @classmethod
    @cache
    def here(cls) -> "Kind":
        """Of this process."""
        versions = {"ptqc": __version__, "numpy": np.__version__, **{name: version(name) for name in LIBRARIES}}
        return cls(processor_name(), _features(), _products(), versions, _source())

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Kind":
        """Inverse of `to_json`."""
        return cls(**document)

    def to_json(self) -> dict[str, Any]:
        """The document of messages and keys."""
        return asdict(self)

    def differences(self, other: "Kind") -> list[str]:
        """What is not alike, in words: "numpy is 2.1.0 there and 2.2.0 here"; `other` is there."""
        return list(self._differences(other))

    def _differences(self, other: "Kind") -> Iterator[str]:
        for name, mine in self.versions.items():
            if (theirs := other.versions.get(name, "missing")) != mine:
                yield f"{name} is {theirs} there and {mine} here"
        if self.processor != other.processor:
            yield f"the processor is {other.processor!r} there and {self.processor!r} here"
        if unlike := set(self.features.split()) ^ set(other.features.split()):
            yield f"only one of the processors has {', '.join(sorted(unlike))}"
        if self.products != other.products:
            yield f"matrices are multiplied for {other.products or 'nothing known'} there and {self.products} here"
        if self.source != other.source:
            yield "the files of ptqc are not the same"


def _features() -> str:
    try:
        return " ".join(sorted(processor_features()))
    except TargetError:  # the system does not tell
        return ""


def _products() -> str:
    """The kernels that NumPy's library multiplies with; other packages may have loaded libraries of their own."""
    found = [one for one in threadpool_info() if one["user_api"] == "blas"]
    own = [one for one in found if "numpy" in one["filepath"]] or found
    return " ".join(sorted({one.get("architecture") or one["internal_api"] for one in own}))


def _source() -> str:
    """Of all modules of ptqc: a checkout may have changed while its version has not."""
    folder, found = Path(__file__).parents[2], hashlib.sha256()
    for path in sorted(_modules(folder)):
        found.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def _modules(folder: Path) -> Iterator[Path]:
    """Files below a folder, those behind the links in ptqc/ included."""
    for path in folder.iterdir():
        if path.is_dir():
            yield from _modules(path)
        elif path.suffix == ".py":
            yield path
