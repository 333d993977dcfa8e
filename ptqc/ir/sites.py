"""Which activations can be quantized, which must share one scale, and which layers that makes integer."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import onnx_ir as ir

from ptqc.formats import ActivationParams
from ptqc.ir.layers import Layer, find_caches
from ptqc.ir.nodes import rank
from ptqc.ir.operators import Trait, absorbs, data_inputs, has_own_scale, is_float, keeps_codes, named

P = TypeVar("P", bound=ActivationParams)

GEMM_AXES = 2
# A node with this property computes in float, whatever kernels there are for it.
IN_FLOAT = "ptqc.in_float"
# What a node with this property makes is not quantized: calibration has not shown all that it can be.
UNSEEN = "ptqc.unseen"


@dataclass(frozen=True)
class ScaleGroup:
    """Activation tensors that share one scale: tied by operators that only move codes.

    name: the first tensor, the stable key. sources: those made by an operator that rounds to the scale.
    """

    name: str
    tensors: tuple[str, ...]
    sources: tuple[str, ...]


@dataclass(frozen=True)
class QuantizableOp:
    """One node that could run on codes: its quantized inputs, its output, and whether that may stay float.

    fused: ONNX Runtime has a kernel for it only if it is a layer that gives codes.
    """

    node: str
    op_type: str
    inputs: tuple[str, ...]
    output: str
    float_output: bool
    fused: bool = False


def find_kernels(
    model: ir.Model, layers: Sequence[Layer], *, closed: bool = False, fused: bool = False
) -> list[QuantizableOp]:
    """The nodes of the main graph that have an integer kernel when their tensors are quantized.

    closed: none of them may give real values. fused: layers and sums alone have one, and all may.
    """
    by_name = {layer.name: layer for layer in layers}
    kernels = []
    for node in model.graph:
        name = str(node.outputs[0].name)
        if IN_FLOAT in node.metadata_props:
            continue
        if name in by_name:
            layer = by_name[name]
            output = layer.output
            inputs: tuple[str, ...] = (layer.input,)
            free = node.op_type in named(Trait.FLOAT_OUTPUT) and output == layer.name
            free &= not closed and (fused or not _fuses_with_sum(node))
        elif has_own_scale(node) and is_float(node.outputs[0]) and (not fused or node.op_type in named(Trait.SUM)):
            absorbed = absorbs(node)
            output = str(absorbed.outputs[0].name) if absorbed is not None else name
            inputs, free = tuple(str(v.name) for v in data_inputs(node)), False
            if fused:
                inputs = _beside_a_layer(inputs, data_inputs(node), by_name)
        else:
            continue
        kernels.append(QuantizableOp(name, node.op_type, inputs, output, free or fused, fused and not free))
    return kernels


def _beside_a_layer(inputs: Sequence[str], values: Sequence[ir.Value], layers: Collection[str]) -> tuple[str, ...]:
    """The inputs of a sum but for one that a layer makes for it alone: the sum is fused with that layer."""
    alone = [str(value.name) for value in values if value.name in layers and len(value.uses()) == 1]
    return tuple(name for name in inputs if name not in alone[:1])


def _fuses_with_sum(node: ir.Node) -> bool:
    """Whether ONNX Runtime may make one Gemm of a MatMul and the sum behind it, which then computes in float."""
    (value,) = node.outputs
    readers = list(value.consumers())
    is_alone = len(readers) == 1 and not value.is_graph_output()
    is_fused = node.op_type in named(Trait.FUSED_WITH_SUM)
    return is_fused and rank(value) == GEMM_AXES and is_alone and readers[0].op_type == "Add"


def find_sites(model: ir.Model, kernels: Sequence[QuantizableOp], *, fused: bool = False) -> list[ScaleGroup]:
    """All tensors that an integer kernel reads or writes, grouped by the operators that keep codes.

    Caches are none: what goes from run to run keeps its digits, unless the form of a cache says otherwise. fused:
    each tensor that a kernel reads has a scale of its own.
    """
    if fused:
        read = {name for kernel in kernels for name in kernel.inputs} - _in_float(model)
        return [ScaleGroup(name, (name,), (name,)) for name in _float_tensors(model) if name in read]
    absorbed = {str(a.outputs[0].name) for node in model.graph if (a := _absorbed_by_kernel(node, kernels)) is not None}
    parent: dict[str, str] = {}
    moved: set[str] = set()
    for node in model.graph:
        outputs = [str(v.name) for v in node.outputs]
        if not keeps_codes(node) or outputs[0] in absorbed:
            continue
        tied = [str(v.name) for v in data_inputs(node)] + outputs
        moved.update(outputs)
        for name in tied[1:]:
            parent[_root(parent, name)] = _root(parent, tied[0])
    wanted = {_root(parent, name) for kernel in kernels for name in (*kernel.inputs, kernel.output)}
    floats = _float_tensors(model)
    in_float = {_root(parent, name) for name in _in_float(model)}
    groups: dict[str, list[str]] = {}
    for name in floats:
        if _root(parent, name) in wanted - in_float:
            groups.setdefault(_root(parent, name), []).append(name)
    pre_activation = {k.node for k in kernels if k.output != k.node}
    sites = []
    for members in groups.values():
        tensors = tuple(name for name in members if name not in pre_activation)
        sources = tuple(name for name in tensors if name not in moved)
        if tensors:
            sites.append(ScaleGroup(tensors[0], tensors, sources))
    return sites


def read_without_padding(model: ir.Model, layers: Sequence[Layer]) -> set[str]:
    """Tensors that only layers read whose bias can make up for a shift: these pad nothing, and have one or get one."""
    able = {layer.name for layer in layers if layer.takes_bias and not any(layer.pads)}
    values = {node.inputs[0] for node in model.graph if node.outputs[0].name in able}
    return {
        str(value.name)
        for value in values
        if value is not None
        and not value.is_graph_output()
        and all(use.idx == 0 and use.node.outputs[0].name in able for use in value.uses())
    }


def _in_float(model: ir.Model) -> set[str]:
    """Caches, what nodes make that compute in float, and what calibration has not shown."""
    result = {str(value.name) for cache in find_caches(model) for value in (cache.past, cache.present)}
    marked = (node for node in model.graph if not node.metadata_props.keys().isdisjoint((IN_FLOAT, UNSEEN)))
    return result | {str(value.name) for node in marked for value in node.outputs}


def _absorbed_by_kernel(node: ir.Node, kernels: Sequence[QuantizableOp]) -> ir.Node | None:
    name = str(node.outputs[0].name)
    return absorbs(node) if any(k.node == name for k in kernels) else None


def _root(parent: dict[str, str], name: str) -> str:
    while parent.get(name, name) != name:
        parent[name] = parent.get(parent[name], parent[name])
        name = parent[name]
    return name


def _float_tensors(model: ir.Model) -> list[str]:
    """Float activations of the main graph in order of appearance."""
    names = [str(v.name) for v in model.graph.inputs if is_float(v)]
    names += [str(v.name) for node in model.graph for v in node.outputs if is_float(v)]
    return names


def source_params(sites: Sequence[ScaleGroup], params: Mapping[str, P]) -> dict[str, P]:
    """Source tensor -> parameters, for the tensors at which values are rounded. params: by site, of those rounded."""
    return {source: params[site.name] for site in sites if site.name in params for source in site.sources}


def integer_kernels(kernels: Sequence[QuantizableOp], quantized: Collection[str]) -> list[QuantizableOp]:
    """The kernels that run on codes when the tensors `quantized` are."""
    return [
        kernel
        for kernel in kernels
        if all(name in quantized for name in kernel.inputs) and (kernel.output in quantized or kernel.float_output)
    ]


def useful_sites(
    sites: Sequence[ScaleGroup], kernels: Sequence[QuantizableOp], layers: Collection[str]
) -> list[ScaleGroup]:
    """The largest subset whose every site serves a kernel that runs on codes, in an island with at least one layer.

    layers: names of the nodes that are layers.
    """
    useful = list(sites)
    while True:
        of = {tensor: site.name for site in useful for tensor in site.tensors}
        active = integer_kernels(kernels, of)
        islands = _islands(active, of)
        alive = {islands[of[k.inputs[0]]] for k in active if k.node in layers}
        served = {of[name] for k in active for name in k.inputs}
        served |= {of[k.output] for k in active if not k.float_output}
        remaining = [site for site in useful if site.name in served and islands[site.name] in alive]
        if len(remaining) == len(useful):
            return remaining
        useful = remaining


def _islands(active: Sequence[QuantizableOp], of: Mapping[str, str]) -> dict[str, str]:
    parent: dict[str, str] = {}
    for kernel in active:
        names = [of[name] for name in (*kernel.inputs, kernel.output) if name in of]
        for name in names[1:]:
            parent[_root(parent, name)] = _root(parent, names[0])
    return {site: _root(parent, site) for site in set(of.values())}
