"""The first run of a foreign model, in a process of its own."""

from pathlib import Path

import onnx_ir as ir

from ptqc.errors import ModelError
from ptqc.execute import sandboxed
from ptqc.execute.onnxruntime import LOOP_LIMIT, Feeds, fits_in_memory, has_loop
from ptqc.reading import ModelSource


def try_once(source: ModelSource, feeds: Feeds) -> None:
    """Load and run the model in a process of its own. Raises ModelError where ONNX Runtime does not survive that."""

    def save(folder: Path) -> Path:
        if not fits_in_memory(source.size):
            return source.path
        ir.save(source.model, folder / "model.onnx")
        return folder / "model.onnx"

    loops = has_loop(source.model)
    try:
        sandboxed.run(save, feeds, source.size, LOOP_LIMIT if loops else None)
    except ModelError as error:
        remark = " (a Loop of it may have no end)" if loops else ""
        raise ModelError(f"{source.called}: {error}{remark}") from error
