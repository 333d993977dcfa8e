"""What the model calls the values of a compiled artifact, whose file has short names of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ptqc.artifact.folder import Artifact, artifact_of
from ptqc.ir.lowered import own_name


@dataclass(frozen=True)
class OwnNames:
    """in_file: the model's name of a value, by its name in the file. labels: the module that computes a value of the
    model, where only weights tell it. mark: of the graph that a library was made of.

    Of artifacts of earlier versions nothing is known, and names stay as they are.
    """

    in_file: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    mark: str = ""

    @classmethod
    def of(cls, artifact: Artifact, kernels: Mapping[str, Any] | None = None) -> "OwnNames":
        """Those that the manifest tells. kernels: what is kept of a library's kernels."""
        manifest = artifact.manifest
        return cls(manifest.get("names", {}), manifest.get("labels", {}), (kernels or {}).get("mark", ""))

    @classmethod
    def beside(cls, file: Path) -> "OwnNames":
        """Those of an ONNX file that lies in the folder of the artifact that it is part of; none of any other file."""
        artifact = artifact_of(file)
        return cls() if artifact is None else cls.of(artifact)

    def of_value(self, name: str) -> str:
        """The model's name of a value of the file."""
        return self.in_file.get(name, name)

    def label(self, name: str) -> str:
        """The module that computes a value of the model; the value's own name where none is known."""
        return self.labels.get(name, name)

    def of_kernel(self, value: str) -> str:
        """The model's name of what a library's kernel makes; a copy or a border of codes is called like these."""
        return next((own for name in (value, value.rpartition("@")[0]) if (own := self._own(name)) != name), value)

    def _own(self, value: str) -> str:
        return own_name(value, self.mark) if self.mark else value
