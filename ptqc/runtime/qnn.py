"""Qualcomm's NPU (Hexagon, HTP): its compiler, and on x86 the emulator that comes with it.

Both are libraries of the package `onnxruntime-qnn`, under Qualcomm's licence; ptqc delivers nothing of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ptqc.runtime.foreign import Arrays, ForeignOutcome, ForeignRuntime, LayerPlacement

# A chip of each architecture: its number in Qualcomm's list.
CHIPS: Mapping[str, int] = {"v68": 35, "v69": 36, "v73": 43, "v75": 57, "v79": 69, "v81": 87}
USUAL_CHIP = "v75"
PROVIDER = "QNN"
CONTEXT = "context.onnx"


class Qnn:
    """See `ptqc.runtime.foreign.ForeignRuntime`. Its option `chip` is a key of `CHIPS`."""

    title = "Qualcomm HTP"
    distribution = "onnxruntime-qnn"
    module = "onnxruntime_qnn"
    files = ("qdq/model.onnx", "model.onnx")

    def run(self, model: Path, samples: Sequence[Arrays], folder: Path, options: Mapping[str, Any]) -> ForeignOutcome:
        """Compile for a chip, which writes a context binary, and run it."""
        import onnx
        import onnxruntime as ort
        import onnxruntime_qnn

        chip = str(options.get("chip", USUAL_CHIP))
        ort.register_execution_provider_library(PROVIDER, onnxruntime_qnn.get_library_path())
        settings = ort.SessionOptions()
        settings.log_severity_level = 4
        settings.intra_op_num_threads = 1
        settings.add_session_config_entry("ep.context_enable", "1")
        settings.add_session_config_entry("ep.context_file_path", str(folder / CONTEXT))
        settings.add_session_config_entry("ep.context_embed_mode", "0")
        device = next(each for each in ort.get_ep_devices() if each.ep_name == PROVIDER)
        settings.add_provider_for_devices(
            [device],
            {
                "backend_path": onnxruntime_qnn.get_qnn_htp_path(),
                "htp_arch": chip.removeprefix("v"),
                "soc_model": str(CHIPS[chip]),
                # What rounds inputs and outputs runs there too.
                "offload_graph_io_quantization": "0",
            },
        )
        session = ort.InferenceSession(str(model), settings)
        names = [value.name for value in session.get_outputs()]
        outputs = [dict(zip(names, session.run(names, feeds), strict=True)) for feeds in samples]
        nodes = onnx.load(model, load_external_data=False).graph.node
        if not (context := folder / CONTEXT).is_file():
            raise ValueError("the NPU takes none of its operators")
        left = onnx.load(context, load_external_data=False).graph.node
        return ForeignOutcome(outputs, _placement(nodes, left), [path.name for path in folder.glob("*.bin")])


def _placement(nodes: Sequence[Any], left: Iterable[Any]) -> LayerPlacement:
    """Where layers run. left: what ONNX Runtime runs of the model: calls of the NPU, and what the CPU computes."""
    from ptqc.ir.operators import Trait, named  # loads onnx_ir, and the command line reads CHIPS

    types = named(Trait.LAYER)
    on_cpu = [node for node in left if node.op_type != "EPContext"]
    real = {name for node in nodes if node.op_type == "DequantizeLinear" for name in node.output}
    rounded = {node.input[0] for node in nodes if node.op_type == "QuantizeLinear"}
    layers = [node for node in nodes if node.op_type in types]
    others = {node.output[0]: "in float16" for node in layers if not real.issuperset(node.input[:2])}
    others |= {node.output[0]: "in float16" for node in layers if node.output[0] not in rounded}
    others |= {node.output[0]: "on the CPU" for node in on_cpu if node.op_type in types}
    return LayerPlacement(len(layers) - len(others), others, [f"{node.op_type} {node.output[0]}" for node in on_cpu])


RUNTIME: ForeignRuntime = Qnn()
