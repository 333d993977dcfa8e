"""Running a command on parts of a model, each in a folder of its own."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ptqc.execution.onnxruntime import Feeds
from ptqc.ir.external import write_model
from ptqc.tools.reduce.cut import Subgraph, Whole
from ptqc.tools.reduce.failure import Command, Failure
from ptqc.tools.reduce.recording import recorded
from ptqc.utils.store import file_digest, write_npz

FEWEST = 2  # samples that a compile needs


@dataclass
class Trials:
    """folder: of recorded samples, `samples` of them, and of what trials need."""

    whole: Whole
    folder: Path
    samples: int
    _known: dict[str, tuple[Failure | None, float]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Trials so far; none is made twice."""
        return len(self._known)

    def run(self, cut: Subgraph, command: Command) -> tuple[Failure | None, float]:
        """How the command fails on a part, or None; and the seconds it took."""
        with tempfile.TemporaryDirectory(dir=self.folder) as temporary:
            folder = Path(temporary)
            model, data = folder / "model.onnx", folder / "data.npz"
            if not self.write(cut, model, data):
                return None, 0.0
            key = file_digest(model)
            if key not in self._known:
                self._known[key] = command.run(model, data, folder)
            return self._known[key]

    def write(self, cut: Subgraph, model: Path, data: Path) -> bool:
        """Write a part and samples for its inputs; False where that cannot be done."""
        proto, feeds = self.whole.model(cut), self._feeds(self.whole.inputs(cut))
        if proto is None or feeds is None:
            return False
        write_model(proto, model)
        write_npz(data, feeds)
        return True

    def _feeds(self, names: Sequence[str]) -> Feeds | None:
        """Samples stacked on a new axis, those with the sizes of the first; None where values are not known."""
        result = [feeds for i in range(self.samples) if (feeds := recorded(self.folder, i, names)) is not None]
        alike = [feeds for feeds in result if all(feeds[name].shape == result[0][name].shape for name in names)]
        if not alike:
            return None
        alike += alike[:1] * (FEWEST - len(alike))
        return {name: np.stack([feeds[name] for feeds in alike]) for name in names}
