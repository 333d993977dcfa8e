"""What each pass made, written to numbered files of a folder for who looks into a compile."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir


class Dump:
    """Numbered files of a folder, which is made; None: nothing is written. Raises OSError where that cannot be done."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._written = 0
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def model(self, name: str, model: ir.Model) -> None:
        """A model as text, `003_fold-batch-norm.txt`."""
        if self.folder is not None:
            self._next(name, "txt").write_text(str(model), encoding="utf-8")

    def document(self, name: str, document: Mapping[str, Any]) -> None:
        """What was found out, `018_calibrate.json`."""
        if self.folder is not None:
            self._next(name, "json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    def _next(self, name: str, suffix: str) -> Path:
        assert self.folder is not None
        self._written += 1
        return self.folder / f"{self._written:03d}_{name}.{suffix}"


NO_DUMP = Dump(None)
