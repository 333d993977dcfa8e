"""OpenVINO on processors: which layers it computes on integers, and what it gives."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ptqc.runtime.foreign import Arrays, ForeignOutcome, ForeignRuntime, LayerPlacement

# Of its operators those that are layers, and the types that are integers.
LAYERS = ("Convolution", "Deconvolution", "FullyConnected", "MatMul")
INTEGERS = ("u8", "i8")


class OpenVino:
    """See `ptqc.runtime.foreign.ForeignRuntime`."""

    title = "OpenVINO"
    distribution = "openvino"
    module = "openvino"
    files = ("qdq/model.onnx", "model.onnx")

    def run(self, model: Path, samples: Sequence[Arrays], folder: Path, options: Mapping[str, Any]) -> ForeignOutcome:
        """Real numbers are computed in float32, whatever the processor multiplies faster."""
        import onnx
        import openvino

        del folder, options
        compiled = openvino.Core().compile_model(str(model), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        names = [value.name for value in onnx.load(model, load_external_data=False).graph.output]
        request = compiled.create_infer_request()
        outputs = []
        for feeds in samples:
            request.infer({name: np.asarray(array, order="C") for name, array in feeds.items()})
            outputs.append({name: np.array(request.get_tensor(name).data) for name in names})
        return ForeignOutcome(outputs, _placement(compiled.get_runtime_model()))


def _placement(graph: Any) -> LayerPlacement:
    """From what OpenVINO tells of the operators that it runs."""
    layers = []
    for node in graph.get_ordered_ops():
        info = node.get_rt_info()
        if info["layerType"].astype(str) in LAYERS:
            layers.append((node.get_friendly_name(), info["runtimePrecision"].astype(str)))
    others = {name: f"in {kind}" for name, kind in layers if kind not in INTEGERS}
    return LayerPlacement(sum(kind in INTEGERS for _, kind in layers), others)


RUNTIME: ForeignRuntime = OpenVino()
