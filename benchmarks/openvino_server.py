"""Times runs of a model in OpenVINO when told to: one line with a number of runs in, one with seconds per run out.

python benchmarks/openvino_server.py MODEL FEEDS.npz THREADS f32|bf16    (needs openvino and numpy, nothing of ptqc)
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino


def opened(path: str, feeds: dict[str, np.ndarray], threads: int, precision: str) -> Callable[[], Any]:
    """A run of a model of the sizes of the feeds. precision: what it computes in where the model says float."""
    core = openvino.Core()
    model = core.read_model(path)
    model.reshape({name: list(array.shape) for name, array in feeds.items()})
    config = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": precision}
    request = core.compile_model(model, "CPU", config).create_infer_request()
    return lambda: request.infer(feeds, share_inputs=True, share_outputs=True)


def main() -> None:
    path, samples, threads, precision = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    with np.load(samples) as arrays:
        run = opened(path, dict(arrays), threads, precision)
    run()
    print(json.dumps({"openvino": openvino.__version__}), flush=True)
    for line in sys.stdin:
        repeats = int(line)
        started = time.perf_counter()
        for _ in range(repeats):
            run()
        print((time.perf_counter() - started) / repeats, flush=True)


if __name__ == "__main__":
    main()
