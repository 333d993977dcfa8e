"""The first run of a foreign model, in a process of its own."""

from pathlib import Path

from ptqc.errors import ModelError
from ptqc.execution import sandboxed
from ptqc.execution.onnxruntime import LOOP_LIMIT, Feeds, has_loop, message
from ptqc.frontend import ModelSource
from ptqc.ir.external import has_references


def try_once(source: ModelSource, feeds: Feeds) -> None:
    """Load and run the model in a process of its own. Raises ModelError where ONNX Runtime does not survive that."""

    proto = message(source.model)

    def save(folder: Path) -> Path:
        path = folder / "model.onnx"
        path.write_bytes(proto.SerializeToString())
        return path

    loops = has_loop(source.model)
    try:
        sandboxed.run(save, feeds, source.size, LOOP_LIMIT if loops else None, is_skeleton=has_references(proto))
    except ModelError as error:
        remark = " (a Loop of it may have no end)" if loops else ""
        raise ModelError(f"{source.called}: {error}{remark}") from error
