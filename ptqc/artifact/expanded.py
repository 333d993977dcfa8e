"""A model that `ptqc expand` wrote: what it and the packed file cost a device."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ptqc.execution.loading import LoadCost
from ptqc.utils.text import visible

# What the manifest of such a folder has, and no other.
EXPANDED = "expanded"
FILE, MANIFEST = "model.onnx", "manifest.json"


@dataclass(frozen=True)
class FileCost:
    """What one form of the model costs a device."""

    #: Bytes of the file, with those of the one of its tensors where it is in two.
    bytes: int
    #: None where ONNX Runtime could not load it here, for want of memory say.
    load: LoadCost | None

    def to_json(self) -> dict[str, Any]:
        """As the manifest has it."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.bytes:,} bytes; {self.load or 'is not loaded here'}"


@dataclass(frozen=True)
class ExpandedModel:
    """A model expanded for one device, in its folder."""

    folder: Path
    #: The compiled file, as it is delivered.
    packed: FileCost
    #: The file in the folder.
    expanded: FileCost
    #: How its outputs were found to agree with the golden samples.
    golden: str

    @property
    def path(self) -> Path:
        """The expanded ONNX file."""
        return self.folder / FILE

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        """Both forms in numbers, hashes of the files, and what is needed to run the file."""
        return dict(json.loads((self.folder / MANIFEST).read_text(encoding="utf-8")))

    def to_json(self) -> dict[str, Any]:
        """The document of `--json`: where it lies, and its manifest."""
        return {"folder": str(self.folder), "path": str(self.path), "manifest": self.manifest}

    def __str__(self) -> str:
        return f"packed      {self.packed}\nexpanded    {self.expanded}\ngolden      {visible(self.golden)}"
