"""LiteRT on processors: what a TFLite model gives there, with kernels for speed or with the reference ones."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ptqc.runtime.foreign import Arrays, ForeignOutcome, ForeignRuntime, LayerPlacement

LAYERS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "BATCH_MATMUL")
# Kernels: XNNPACK's where it has them; those that tell what an operator is to give, as on microcontrollers.
FAST, REFERENCE = "AUTO", "BUILTIN_REF"


class LiteRt:
    """See `ptqc.runtime.foreign.ForeignRuntime`. Its option `kernels` is `FAST` or `REFERENCE`."""

    title = "LiteRT"
    distribution = "ai-edge-litert"
    module = "ai_edge_litert"
    files = ("litert/model.tflite",)

    def run(self, model: Path, samples: Sequence[Arrays], folder: Path, options: Mapping[str, Any]) -> ForeignOutcome:
        """Run the model's signature, which has the names of inputs and outputs."""
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        del folder
        kernels = OpResolverType[options.get("kernels", FAST)]
        interpreter = Interpreter(str(model), num_threads=1, experimental_op_resolver_type=kernels)
        signature = interpreter.get_signature_runner()
        outputs = [{name: array.copy() for name, array in signature(**feeds).items()} for feeds in samples]
        return ForeignOutcome(outputs, _placement(model))


def _placement(model: Path) -> LayerPlacement:
    """From the types of what layers read: LiteRT computes what the model says."""
    from ai_edge_litert import schema_py_generated as schema

    file = schema.ModelT.InitFromPackedBuf(model.read_bytes())
    names = {code: name for name, code in vars(schema.BuiltinOperator).items()}
    (graph,) = file.subgraphs
    integers, others = 0, {}
    for operator in graph.operators:
        if names[file.operatorCodes[operator.opcodeIndex].builtinCode] in LAYERS:
            read = [graph.tensors[index] for index in operator.inputs[:2]]
            if all(tensor.type == schema.TensorType.INT8 for tensor in read):
                integers += 1
            else:
                others[graph.tensors[operator.outputs[0]].name.decode()] = "in float32"
    return LayerPlacement(integers, others)


RUNTIME: ForeignRuntime = LiteRt()
