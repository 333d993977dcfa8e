"""What loading a file costs: time of a processor and memory of a session, in processes that do nothing else.

`python -m ptqc.execution.loading MODEL` is such a process. It prints both numbers as JSON.
"""

import json
import resource
import statistics
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ptqc.errors import ModelError
from ptqc.utils import sandbox

SECONDS = 600.0
PROCESSES = 3
ENOUGH, MOST_LOADS = 0.2, 50  # seconds of a processor
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
CLEAR_PEAK = "5"  # see proc_pid_clear_refs(5)
KIB = 1024


@dataclass(frozen=True)
class LoadCost:
    """What one session on one thread takes until it can run."""

    #: Milliseconds of a processor; of small files the mean over several times.
    milliseconds: float
    #: By how many bytes the resident memory of the process grows at most.
    memory_bytes: int

    def __str__(self) -> str:
        return f"loads in {self.milliseconds:,.1f} ms of CPU time with {self.memory_bytes / 1e6:,.1f} MB of memory"


def measure_load(path: Path, processes: int = PROCESSES) -> LoadCost:
    """Load a file in fresh processes of ONNX Runtime, one after the other; the medians.

    Raises ModelError where ONNX Runtime does not load it.
    """
    size = sum(file.stat().st_size for file in path.parent.glob(f"{path.stem}.*"))
    costs = [_measured(path, size) for _ in range(processes)]
    return LoadCost(
        statistics.median(cost.milliseconds for cost in costs),
        int(statistics.median(cost.memory_bytes for cost in costs)),
    )


def _measured(path: Path, size: int) -> LoadCost:
    ended = sandbox.run(__name__, [str(path)], SECONDS, size)
    if ended.problem is not None:
        raise ModelError(f"loading {path} in ONNX Runtime {ended.problem}")
    return LoadCost(**json.loads(ended.said))


def _load(path: str) -> LoadCost:
    import onnxruntime as ort

    def load(model: str | bytes) -> object:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    load(_smallest())  # what the library sets up once is no part of any model
    with suppress(OSError):  # else the peak is that of the process, which loading the file has to exceed
        CLEAR.write_text(CLEAR_PEAK)
    before, started = resident("VmRSS"), time.process_time()
    load(path)
    memory, loads = max(0, resident("VmHWM") - before), 1
    # Systems that count in ticks of a few milliseconds tell nothing of one load of a small file.
    while (spent := time.process_time() - started) < ENOUGH and loads < MOST_LOADS:
        load(path)
        loads += 1
    return LoadCost(1e3 * spent / loads, memory)


def _smallest() -> bytes:
    """A model of one node."""
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    return bytes(model.SerializeToString())


def resident(field: str) -> int:
    """Bytes of resident memory, now (VmRSS) or at most (VmHWM); of other systems than Linux the most until now."""
    with suppress(OSError):
        lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
        return int(lines[field].split()[0]) * KIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else KIB)


if __name__ == "__main__":
    print(json.dumps(vars(_load(sys.argv[1]))))
