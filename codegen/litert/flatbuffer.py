"""Writes TFLite models as flatbuffers, by the schema of the package `ai-edge-litert`, which has to be installed."""

from collections.abc import Mapping
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from ptqc.codegen.litert.writer import TfliteGraph, TfliteOperator, TfliteTensor

# Operators on int8 are newer versions of those on real values; what is not named here is version 1 on both.
VERSIONS: Mapping[str, int] = {
    "CONV_2D": 3,
    "DEPTHWISE_CONV_2D": 3,
    "DEQUANTIZE": 2,
    "FULLY_CONNECTED": 12,  # scales per output channel
    **dict.fromkeys(("ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM", "RELU", "RELU6", "LEAKY_RELU"), 2),
    **dict.fromkeys(("MAX_POOL_2D", "AVERAGE_POOL_2D", "MEAN", "LOGISTIC", "TANH", "SOFTMAX"), 2),
    **dict.fromkeys(("CONCATENATION", "PAD", "PADV2", "STRIDED_SLICE", "TRANSPOSE"), 2),
    **dict.fromkeys(("BATCH_MATMUL", "GATHER"), 2),
    "RESIZE_BILINEAR": 3,  # half of a pixel
    "RESIZE_NEAREST_NEIGHBOR": 3,
}
GROUPED = 6  # the version of CONV_2D with groups
IDENTIFIER, SCHEMA_VERSION, SIGNATURE = b"TFL3", 3, "serving_default"
ALIGNMENT = 16  # of constants, which the schema demands
LONGEST_CODE = 127  # of operators in the field of one byte that older readers look at


def serialized(graph: TfliteGraph) -> bytes:
    """The file of a graph."""
    builder = _SharingBuilder(1 << 20)
    builder.Finish(_Packer().model(graph).Pack(builder), IDENTIFIER)
    return bytes(builder.Output())


class _SharingBuilder(flatbuffers.Builder):  # type: ignore[misc]
    """Stores equal vectors once, such as zero points, and constants where the schema wants them to lie."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._stored: dict[tuple[str, bytes], int] = {}

    def CreateNumpyVector(self, x: np.ndarray) -> int:  # noqa: N802
        """See the class."""
        key = (x.dtype.str, x.tobytes())
        if key not in self._stored:
            alignment = ALIGNMENT if x.dtype == np.uint8 else x.itemsize
            self.StartVector(x.itemsize, x.size, alignment)
            self.head -= x.nbytes
            self.Bytes[self.head : self.head + x.nbytes] = key[1]
            self._stored[key] = self.EndVector()
        return self._stored[key]


class _Packer:
    """Turns a graph into objects of the schema."""

    def __init__(self) -> None:
        self.buffers: list[Any] = [schema.BufferT()]  # the first one is empty, and that of all that is no constant
        self.tensors: list[Any] = []
        self.indices: dict[TfliteTensor, int] = {}
        self.codes: dict[tuple[str, int], int] = {}

    def model(self, graph: TfliteGraph) -> Any:
        inputs = [self._index(tensor) for tensor in graph.inputs]
        operators = [self._operator(each) for each in graph.operators]
        outputs = [self._index(tensor) for tensor in graph.outputs.values()]
        signature = schema.SignatureDefT(
            inputs=[schema.TensorMapT(tensor.name, self._index(tensor)) for tensor in graph.inputs],
            outputs=[schema.TensorMapT(name, self._index(tensor)) for name, tensor in graph.outputs.items()],
            signatureKey=SIGNATURE,
        )
        return schema.ModelT(
            version=SCHEMA_VERSION,
            operatorCodes=[self._code(*code) for code in self.codes],
            subgraphs=[schema.SubGraphT(tensors=self.tensors, inputs=inputs, outputs=outputs, operators=operators)],
            description="ptqc",
            buffers=self.buffers,
            signatureDefs=[signature],
        )

    def _code(self, operator: str, version: int) -> Any:
        code = getattr(schema.BuiltinOperator, operator)
        return schema.OperatorCodeT(min(code, LONGEST_CODE), None, version, code)

    def _operator(self, operator: TfliteOperator) -> Any:
        inputs = operator.inputs
        on_codes = any(tensor.dtype == np.int8 for tensor in inputs)
        version = VERSIONS.get(operator.name, 1) if on_codes else 1
        if operator.name == "CONV_2D" and inputs[0].shape[-1] != inputs[1].shape[-1]:
            version = GROUPED
        result = schema.OperatorT(
            opcodeIndex=self.codes.setdefault((operator.name, version), len(self.codes)),
            inputs=[self._index(tensor) for tensor in inputs],
            outputs=[self._index(operator.output)],
        )
        if operator.kind:
            result.builtinOptionsType = getattr(schema.BuiltinOptions, operator.kind)
            result.builtinOptions = getattr(schema, f"{operator.kind}T")(**operator.options)
        return result

    def _index(self, tensor: TfliteTensor) -> int:
        if tensor not in self.indices:
            self.indices[tensor] = len(self.tensors)
            self.tensors.append(self._tensor(tensor))
        return self.indices[tensor]

    def _tensor(self, tensor: TfliteTensor) -> Any:
        params = None
        if tensor.scales:
            params = schema.QuantizationParametersT(
                scale=np.array(tensor.scales, np.float32),
                zeroPoint=np.array(tensor.zeros, np.int64),
                quantizedDimension=tensor.axis,
            )
        buffer = 0
        if tensor.data is not None:
            buffer = len(self.buffers)
            data = np.frombuffer(tensor.data.astype(tensor.dtype).tobytes(), np.uint8)
            self.buffers.append(schema.BufferT(data))
        kind = getattr(schema.TensorType, tensor.dtype.name.upper())
        return schema.TensorT(
            shape=list(tensor.shape), type=kind, buffer=buffer, name=tensor.name, quantization=params, hasRank=True
        )
