"""Load and run one model, and save what came of it. Run by the interpreter under test, which may lack ptqc and onnx.

python compat_probe.py MODEL FEEDS.npz OPTIMIZED.onnx OUTPUTS.npz   prints one line of JSON
"""

import json
import sys
import time

import numpy as np
import onnxruntime as ort


def main(model: str, feeds: str, optimized: str, outputs: str) -> "dict[str, float]":
    """Write the optimized graph and the outputs; gives how long the session took to load, and the second run."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = optimized
    started = time.perf_counter()
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    seconds = time.perf_counter() - started
    with np.load(feeds, allow_pickle=False) as arrays:
        inputs = dict(arrays)
    values = session.run(None, inputs)
    started = time.perf_counter()
    session.run(None, inputs)
    run_seconds = time.perf_counter() - started
    names = [value.name for value in session.get_outputs()]
    np.savez(outputs, **dict(zip(names, values)))  # noqa: B905  (the interpreter may be older than 3.10)
    return {"load_ms": 1000 * seconds, "run_ms": 1000 * run_seconds}


if __name__ == "__main__":
    result = {"runtime": ort.__version__, "numpy": np.__version__}
    try:
        result.update(main(*sys.argv[1:]))
    except Exception as error:  # a refusal is the finding
        result["error"] = f"{type(error).__name__}: {' '.join(str(error).split())}"
    print(json.dumps(result))
