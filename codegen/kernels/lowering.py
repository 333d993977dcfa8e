"""From the lowered graph to a program: each node goes to the family that takes it, or is named with the reason."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import onnx_ir as ir

from ptqc.codegen.kernels.backend import KernelBackend
from ptqc.codegen.kernels.families.functions import BINARY, UNARY
from ptqc.codegen.kernels.families.reductions import REDUCTIONS
from ptqc.codegen.kernels.families.typed import INTEGERS
from ptqc.codegen.kernels.op_lowerings import (
    codes,
    elementwise,
    float8,
    indexing,
    layers,
    lengths,
    movement,
    real,
    recurrent,
    resizing,
)
from ptqc.codegen.kernels.program_builder import ProgramBuilder, is_float8
from ptqc.codegen.program.batching import Batching, Seen
from ptqc.codegen.program.folding import fold
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import Axes, Program, UnsupportedOp
from ptqc.codegen.program.recurrent import CELLS
from ptqc.errors import NoKernel
from ptqc.ir import reference
from ptqc.ir.lowered import Lowered
from ptqc.ir.nodes import only_consumer, output_name
from ptqc.ir.operators import clip_bounds
from ptqc.ir.operators.base import LoweredStep, codes_of, has_float_output
from ptqc.runtime.lengths import UnknownSizeError

DTYPES = ("float32", "float64", "float16", "bool", *INTEGERS)

KERNELS: Mapping[str, Callable[[ProgramBuilder, LoweredStep], None]] = {
    "Conv": layers.integer_conv,
    "Gemm": layers.integer_product,
    "MatMul": layers.integer_product,
    "Add": codes.add,
    "Mul": codes.mul,
    "GlobalAveragePool": codes.mean,
}
BETWEEN_CODES: Mapping[str, Callable[[ProgramBuilder, ir.Node, ir.Node], None]] = {
    **dict.fromkeys(UNARY, codes.table),
    "AveragePool": codes.average,
    "Softmax": codes.softmax,
}
OPERATORS: Mapping[str, Callable[[ProgramBuilder, ir.Node], None]] = {
    **dict.fromkeys((*UNARY, *BINARY, *elementwise.TYPED), elementwise.apply),
    "Clip": elementwise.clip,
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), movement.reshape),
    "Conv": layers.conv,
    "Gemm": layers.product,
    "MatMul": layers.product,
    "AveragePool": real.average,
    "GlobalAveragePool": real.mean,
    **dict.fromkeys(REDUCTIONS, real.fold),
    **dict.fromkeys(("ArgMax", "ArgMin"), indexing.place_of_best),
    **dict.fromkeys(("CumProd", "CumSum"), indexing.running),
    "GatherElements": indexing.gather_elements,
    "GatherND": indexing.gather_nd,
    "ScatterElements": indexing.scatter_elements,
    "ScatterND": indexing.scatter_nd,
    "Trilu": indexing.triangle,
    **dict.fromkeys(("Softmax", "LogSoftmax"), real.softmax),
    **dict.fromkeys(CELLS, recurrent.emit),
    "LayerNormalization": real.normalize,
    "QuantizeLinear": codes.quantize,
    "Concat": movement.concat,
    "ConstantOfShape": lengths.filled,
    "Range": lengths.steps,
    **dict.fromkeys(("Expand", "Tile"), movement.repeat),
    "Gather": movement.gather,
    "DepthToSpace": movement.depth_to_space,
    "MaxPool": movement.largest,
    "Pad": movement.pad,
    "Resize": resizing.resize,
    "Slice": movement.strided,
    "Split": movement.split,
    "Transpose": movement.transpose,
}


def operators(_folder: Path) -> dict[str, list[str]]:
    """The operators that have kernels, as a report of a job."""
    return {"operators": sorted({*KERNELS, *BETWEEN_CODES, *OPERATORS})}


def program(lowered: Lowered, seen: Seen, backend: KernelBackend, batching: Batching) -> Program:
    """All kernels of a lowered graph.

    seen: of every value in one run of the model. Raises NoKernel naming the node that no family takes.
    """
    folded = fold(lowered.model, seen, batching.batch)
    arrays = {**folded.constants, **{name: result[0] for name, result in folded.numbers.items()}}
    shapes = {**seen.shapes, **{name: array.shape for name, array in arrays.items()}}
    dtypes = {**seen.dtypes, **{name: str(array.dtype) for name, array in arrays.items()}}
    builder = ProgramBuilder(
        lowered,
        Axes(shapes, batching.batch),
        dtypes,
        folded.constants,
        backend,
        lengths=seen.lengths,
        points=seen.points or ({},),
        numbers=folded.numbers,
        largest=folded.largest,
    )
    _take_inputs(builder)
    static = arrays.keys() | folded.of_batch
    kernels = {step.node: step for step in reference.steps(lowered) if step.node.op_type in KERNELS}
    done: set[ir.Node] = set()
    for node in lowered.model.graph:
        if node in done or all(value.name in static for value in node.outputs):
            continue
        with _refusing(f"the {backend.isa.owner} target has no kernel for {node.op_type} {output_name(node)}"):
            done |= _emit(builder, node, kernels.get(node))
    with _refusing(f"the {backend.isa.owner} target cannot give an output"):
        return builder.program(seen.fixed, is_any=batching.is_any)


def _take_inputs(builder: ProgramBuilder) -> None:
    """Remember how the model's inputs lie in memory."""
    for value in builder.lowered.model.graph.inputs:
        with _refusing(f"the {builder.isa.owner} target cannot take the input {value.name}"):
            if builder.dtype(value) not in DTYPES:
                raise UnsupportedOp(f"it is {builder.dtype(value)}, and {', '.join(DTYPES)} are what has kernels")
            builder.layouts[str(value.name)] = Layout(builder.shape(value), builder.dtype(value), is_io=True)


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    try:
        yield
    except (UnsupportedOp, UnknownSizeError) as reason:
        raise NoKernel(f"{what}: {reason}") from reason


def _emit(builder: ProgramBuilder, node: ir.Node, step: LoweredStep | None) -> set[ir.Node]:
    """Add the kernels of a node; the nodes behind it that they do the work of."""
    in_float8 = any(map(is_float8, filter(None, (*node.inputs, *node.outputs))))
    if in_float8 and builder.backend.float8 is None:
        raise UnsupportedOp("FP8 has no kernels here; compile without --activations float8, or leave the target out")
    if step is not None:
        KERNELS[node.op_type](builder, step)
        return set() if has_float_output(step) else {node.outputs[0].consumers()[0]}
    if node.op_type == "DequantizeLinear":
        return set()  # written where somebody asks for the real value
    rounding = only_consumer(node.outputs[0])
    is_rounded = rounding is not None and rounding.op_type == "QuantizeLinear"
    between = BETWEEN_CODES.get(node.op_type)
    if between is not None and codes_of(node.inputs[0]) and rounding is not None and is_rounded:
        between(builder, node, rounding)
        return {rounding}
    if node.outputs[0].dtype == ir.DataType.BFLOAT16 and rounding is not None and rounding.op_type == "Cast":
        real.rounded(builder, node, rounding)
        return {rounding}
    if clip_bounds(node) is not None and node.outputs[0].dtype == ir.DataType.UINT8:
        codes.limit(builder, node)
    elif float8.layer(builder, node):
        pass
    elif node.op_type in OPERATORS and not node.domain:
        OPERATORS[node.op_type](builder, node)
    else:
        raise UnsupportedOp(_unknown(node))
    return set()


def _unknown(node: ir.Node) -> str:
    """Why no family takes a node."""
    if node.op_type == "If" and not node.domain:
        return "which branch it takes is not known before it runs"
    return "the operator is not known to it"
