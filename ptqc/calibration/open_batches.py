"""Batches of a model that leaves their size open: each row is a sample where the model shows that rows stand alone.

What a model declares does not tell an item that is one sample, such as a text of many rows, from one that is many. So
the model itself says it: it gives for rows alone what it gives for them together, or it does not.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain

import numpy as np
import onnx_ir as ir

from ptqc.calibration.joining import is_joined
from ptqc.errors import ModelError
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.ir.nodes import has_open_first_axis


class OpenBatches:
    """Takes checked samples apart whose rows are samples, as the first one of several rows shows.

    first_run: is called with feeds before this process runs the model; None where it has run before.
    """

    def __init__(self, model: ir.Model, first_run: Callable[[Feeds], None] | None = None) -> None:
        self._model, self._first_run = model, first_run
        self._is_open = all(map(has_open_first_axis, chain(model.graph.inputs, model.graph.outputs)))
        self._known: bool | None = None
        self.has_run = False

    def __call__(self, feeds: Feeds) -> Sequence[Feeds]:
        """The samples."""
        counts = {len(array) if array.ndim else 0 for array in feeds.values()}
        if not self._is_open or len(counts) != 1 or min(counts) < 2:
            return [feeds]
        rows = [{name: array[row : row + 1] for name, array in feeds.items()} for row in range(*counts)]
        if self._known is None:
            self._known = self._stand_alone(rows)
        return rows if self._known else [feeds]

    def _stand_alone(self, rows: Sequence[Feeds]) -> bool | None:
        """Whether two rows that differ show that rows do not depend on each other; None where there are no two."""
        first = rows[0]
        other = next((row for row in rows if any(np.any(row[name] != first[name]) for name in first)), None)
        if other is None:
            return None
        if self._first_run is not None:
            self._first_run(first)
        self.has_run = True
        with suppress(ModelError):  # some models load only after they are rewritten
            return is_joined(Runner(self._model), (first, other))
        return False
