"""The first time that a native library meets a foreign model, in a sandboxed process.

`python -m ptqc.execution.sandboxed check MODEL`, `… run MODEL FEEDS` and `… run-skeleton MODEL FEEDS` are the work of
that process. What a library refuses by an error of its own is no finding here: it is met again, and told, by the
process that asked.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ptqc.errors import ModelError
from ptqc.utils import sandbox
from ptqc.utils.memory import lacks_memory
from ptqc.utils.scratch import scratch
from ptqc.utils.store import write_npz

SECONDS = 120.0
BYTES_PER_SECOND = 10_000_000
ADVICE = "export the model again, with another exporter or opset, and report this"


def check(path: Path, size: int) -> None:
    """Have ONNX's checker and shape inference look at a file. size: its bytes, external data included.

    Raises ModelError where one of them crashes, hangs or takes all memory.
    """
    _attempt(["check", str(path)], size)


def check_bytes(model: bytes) -> None:
    """The same of a model in memory, which goes through a file."""
    with scratch() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model)
        check(path, len(model))


def run(
    save: Callable[[Path], Path],
    feeds: Mapping[str, np.ndarray],
    size: int,
    seconds: float | None = None,
    *,
    is_skeleton: bool = False,
) -> None:
    """Have ONNX Runtime load a model and run one sample.

    save: writes the model to a folder and returns its path. seconds: for a model without an end, say. is_skeleton:
    whether what is written refers to files by their whole paths.
    Raises ModelError as `check` does.
    """
    with scratch() as temporary:
        folder = Path(temporary)
        write_npz(folder / "feeds.npz", feeds)
        _attempt(
            ["run-skeleton" if is_skeleton else "run", str(save(folder)), str(folder / "feeds.npz")], size, seconds
        )


def _attempt(arguments: Sequence[str], size: int, seconds: float | None = None) -> None:
    limit = (SECONDS if seconds is None else seconds) + size / BYTES_PER_SECOND
    ended = sandbox.run(__name__, arguments, limit, size)
    if ended.problem is not None:
        raise ModelError(f"{ended.said or 'reading it'} {ended.problem}; {ADVICE}")


def _check(path: str) -> None:
    import onnx

    print("parsing it", flush=True)
    model = onnx.load(path, load_external_data=False)
    print("ONNX's shape inference", flush=True)
    _tolerated(lambda: onnx.shape_inference.infer_shapes(model, data_prop=False))
    print("ONNX's checker", flush=True)
    _tolerated(lambda: onnx.checker.check_model(path))


def _run(path: str, feeds: str, *, is_skeleton: bool = False) -> None:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    model, result = _skeleton(path, options) if is_skeleton else (path, {})
    print(f"loading it in ONNX Runtime {ort.__version__}", flush=True)
    session = _tolerated(
        lambda: ort.InferenceSession(model, options, ["CPUExecutionProvider"], enable_fallback=0, **result)
    )
    if session is not None:
        print(f"a run in ONNX Runtime {ort.__version__}", flush=True)
        with np.load(feeds) as arrays:
            _tolerated(lambda: session.run(None, dict(arrays)))


def _skeleton(path: str, options: Any) -> tuple[bytes, dict[str, Any]]:
    """A model without its tensors, and how it is opened. What only these need takes longer to import than the rest."""
    from ptqc.execution.onnxruntime import SETTINGS, WITHOUT

    for name, value in SETTINGS.items():
        options.add_session_config_entry(name, value)
    return Path(path).read_bytes(), {"disabled_optimizers": list(WITHOUT)}


def _tolerated(work: Callable[[], Any]) -> Any:
    """The result of something that may raise whatever it likes, but for want of memory; then None."""
    try:
        return work()
    except Exception as error:
        if lacks_memory(error):
            raise MemoryError from error
        return None


if __name__ == "__main__":
    if sys.argv[1] == "check":
        _check(*sys.argv[2:])
    else:
        _run(*sys.argv[2:], is_skeleton=sys.argv[1] == "run-skeleton")
