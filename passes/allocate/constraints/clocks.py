"""Times of a network's operators on this machine: in float, on codes, and of the conversions between.

Three files are profiled: the float network; the network with every activation quantized; and the latter with its
integer kernels forbidden, which rounds every tensor to codes and back. Where products in float may keep their weights
packed, in operators of ONNX Runtime's own, the first is a file in which all of them do.
"""

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from onnx import TensorProto, helper

from ptqc.codegen.onnxruntime import float_layers, float_pools, lookup, matmul_nbits
from ptqc.codegen.onnxruntime.export import Exported, export
from ptqc.codegen.program.timing import TimedCall, TimedProgram
from ptqc.codegen.targets import Chosen, Timer
from ptqc.execution.onnxruntime import Feeds
from ptqc.execution.speed import Profile, Subject, latencies, profile
from ptqc.formats import ActivationParams, coded
from ptqc.formats.base import LOWEST_OPSET
from ptqc.ir.lowered import Lowered
from ptqc.ir.plan import Plan
from ptqc.ir.sites import ScaleGroup
from ptqc.options import CompileOptions
from ptqc.passes.allocate.cost_model import Network, OpLatencies, owners
from ptqc.passes.allocate.problem import forms, packed, table_parameters
from ptqc.passes.allocate.state import QuantizedModel
from ptqc.passes.quantize.phases import Analysis
from ptqc.utils.progress import Progress

RUNTIME = f"ONNX Runtime {ort.__version__}, one thread"
SECONDS, FEW_SECONDS = 6.0, 3.0
NO_INTEGER_KERNELS = {"session.disable_quant_qdq": "1"}
IR_VERSION = 8
TO_LAST, FROM_LAST = (0, 2, 3, 1), (0, 3, 1, 2)

Conversion = tuple[str, str]  # "quantize" or "dequantize", and the tensor


class OnnxRuntimeMeter:
    """Times files in ONNX Runtime; see `ptqc.passes.allocate.constraints.latency.LatencyMeter`."""

    def measure(self, analysis: Analysis, options: CompileOptions, progress: Progress) -> OpLatencies:
        """See `measure_times`."""
        return measure_times(analysis, options, progress)

    def latencies(self, analysis: Analysis, options: CompileOptions, plan: Plan) -> tuple[float, float]:
        """Of what has nothing on codes, and of a plan's file."""
        _, exported = packed(analysis, plan, table_parameters(analysis, plan.formats), options)
        subjects = [in_float(analysis, options), Subject(exported.proto, analysis.held_back[0])]
        real, quantized = latencies(subjects, FEW_SECONDS)
        return real, quantized

    def profiles(self, analysis: Analysis, _options: CompileOptions, fitted: QuantizedModel) -> tuple[Profile, Profile]:
        """Of the float model, and of the delivered file."""
        plan, feeds = fitted.plan, analysis.held_back[0]
        subjects = [
            float_subject(analysis.model, plan, feeds),
            quantized_subject(fitted.lowered, fitted.exported, plan, feeds),
        ]
        real, quantized = profile(subjects, FEW_SECONDS)
        return real, quantized


def measure_times(analysis: Analysis, options: CompileOptions, progress: Progress) -> OpLatencies:
    """Profile a float model in normal form and what quantization makes of it."""
    network, everything = network_of(analysis), any_plan(analysis, options, analysis.ranges)
    with progress.stage("time operators"):
        lowered, exported = packed(analysis, everything, table_parameters(analysis, everything.formats), options)
        feeds = analysis.held_back[0]
        subjects = [in_float(analysis, options), quantized_subject(lowered, exported, everything, feeds)]
        without = export(lowered, analysis.model, is_fast=False)
        subjects.append(replace(quantized_subject(lowered, without, everything, feeds), settings=NO_INTEGER_KERNELS))
        real, codes, rounded = profile(subjects, SECONDS)
        moves = _moves(rounded) if codes.transposes else {}
    # Of tensors that only pools in float read, the file has no codes.
    unwritten = {tensor for tensor, name in lowered.codes.items() if name not in exported.renamed}
    times = _times(network, real, codes, rounded, moves)
    written = {tensor: ns for tensor, ns in times.quantize.items() if tensor not in unwritten}
    return replace(times, quantize=written, in_blocks=options.in_blocks)


def network_of(analysis: Analysis) -> Network:
    """Operators and conversions whose times add up to the latency of a choice of sites."""
    return Network.of(analysis.model, everything_of(analysis))


def everything_of(analysis: Analysis) -> Plan:
    """A plan that quantizes every site, in which no weight has a format yet."""
    return replace(analysis.roles, activations=analysis.ranges)


def any_plan(analysis: Analysis, options: CompileOptions, activations: Mapping[str, ActivationParams]) -> Plan:
    """A plan that quantizes these sites, with some format for each weight: none is faster than another.

    Codes that serve no kernel stay, as their conversions are timed.
    """
    plan = replace(analysis.roles, activations=activations)
    losses = analysis.weight_losses
    formats = {
        w.name: min(forms(w, analysis, plan, options), key=lambda form, w=w: losses[w.name, form])  # type: ignore[misc]
        for w in analysis.weights
    }
    plan = plan.with_formats(formats)
    return replace(plan, activations={**plan.activations, **coded(activations)})


def in_float(analysis: Analysis, options: CompileOptions) -> Subject:
    """What computes with nothing on codes: the float model, as any file of standard operators is one once it is loaded.

    Where operators may keep weights packed, it is a file of the formats that lose least: those of more bytes, and of no
    less time.
    """
    feeds = analysis.held_back[0]
    if not options.in_blocks:
        return float_subject(analysis.model, everything_of(analysis), feeds)
    plan = any_plan(analysis, options, {})
    lowered, exported = packed(analysis, plan, table_parameters(analysis, plan.formats), options)
    return quantized_subject(lowered, exported, everything_of(analysis), feeds)


def float_subject(model: ir.Model, plan: Plan, feeds: Feeds) -> Subject:
    """The float model, its nodes charged to operators."""
    owner = owners(plan.kernels)
    names = [str(node.outputs[0].name) for node in model.graph]
    return Subject(model, feeds, {name: owner.get(name, name) for name in names})


def quantized_subject(lowered: Lowered, exported: Exported, plan: Plan, feeds: Feeds) -> Subject:
    """A packed file, its nodes charged to operators and to conversions of tensors."""
    short, keys = exported.renamed, charged_to(lowered, plan)
    for node in lowered.model.graph:
        output, read = str(node.outputs[0].name), str(node.inputs[0].name) if node.inputs and node.inputs[0] else ""
        if _is_quantize(keys.get(output)) and read not in short:  # what a table makes is no conversion
            keys.update(dict.fromkeys((output, *lookup.inside(output)), keys[read]))
        elif node.op_type == "MaxPool":
            keys.update(dict.fromkeys(float_pools.inside(output), keys[output]))
        elif node.op_type in float_layers.ROUNDED:
            keys[float_layers.inside(output)] = keys[output]
        elif node.op_type in matmul_nbits.PRODUCTS:
            keys.update(dict.fromkeys(matmul_nbits.inside(output), keys[output]))
    return Subject(exported.proto, feeds, {short.get(name, name): key for name, key in keys.items()})


def charged_to(lowered: Lowered, plan: Plan) -> dict[str, Hashable]:
    """What making a value of a lowered graph is charged to: an operator, or the conversion of a tensor."""
    owner = owners(plan.kernels)
    tensor_of = {codes: tensor for tensor, codes in lowered.codes.items()}
    keys: dict[str, Hashable] = {}
    for node in lowered.model.graph:
        output, read = str(node.outputs[0].name), str(node.inputs[0].name) if node.inputs and node.inputs[0] else ""
        if node.op_type == "QuantizeLinear" and output in tensor_of:
            tensor = tensor_of[output]
            keys[output] = ("quantize", tensor)
            keys[read] = owner.get(tensor, tensor)  # the value may be called otherwise before it is rounded
        elif node.op_type == "DequantizeLinear" and read in tensor_of:
            keys[output] = ("dequantize", tensor_of[read])
        else:
            tensor = tensor_of.get(output, output)
            keys.setdefault(output, owner.get(tensor, tensor))
    return keys


def _is_quantize(key: Hashable) -> bool:
    return isinstance(key, tuple) and key[0] == "quantize"


def _moves(rounded: Profile) -> dict[Hashable, float]:
    """Nanoseconds of the change of layout that integer kernels ask for at each conversion: their channels lie last."""
    images = {key: shape for key, shape in rounded.shapes.items() if isinstance(key, tuple) and len(shape) == 4}
    if not images:
        return {}
    (timed,) = profile([_transposes(sorted(set(images.values())))], SECONDS / 4)
    return {(what, tensor): timed.charges.get((what, images[what, tensor]), 0.0) for what, tensor in images}


def _transposes(shapes: Sequence[tuple[int, ...]]) -> Subject:
    """A model that transposes codes of each shape, to channels last and back."""
    nodes, inputs, outputs = [], [], []
    feeds: Feeds = {}
    keys: dict[str, Hashable] = {}
    for place, shape in enumerate(shapes):
        last = tuple(shape[axis] for axis in TO_LAST)
        for what, input_shape, order in (("quantize", shape, TO_LAST), ("dequantize", last, FROM_LAST)):
            read, moved = f"{what}{place}", f"{what}{place}_moved"
            nodes.append(helper.make_node("Transpose", [read], [moved], perm=order))
            inputs.append(helper.make_tensor_value_info(read, TensorProto.UINT8, input_shape))
            outputs.append(helper.make_tensor_value_info(moved, TensorProto.UINT8, None))
            feeds[read], keys[moved] = np.zeros(input_shape, np.uint8), (what, shape)
    graph = helper.make_graph(nodes, "transposes", inputs, outputs)
    opsets = [helper.make_opsetid("", LOWEST_OPSET)]
    return Subject(helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION), feeds, keys)


def _times(
    network: Network, real: Profile, codes: Profile, rounded: Profile, moves: Mapping[Hashable, float]
) -> OpLatencies:
    floats = {o.node: real.charges.get(o.node, 0.0) for o in network.operators}
    integers = {o.node: codes.charges.get(o.node, 0.0) for o in network.operators if o.tensors}
    quantize, dequantize = (
        {edge.tensor: _conversion((what, edge.tensor), codes, rounded, moves) for edge in network.edges}
        for what in ("quantize", "dequantize")
    )
    return OpLatencies(RUNTIME, known(floats), known(integers), known(quantize), known(dequantize))


def known(column: Mapping[str, float]) -> dict[str, float]:
    """Times in whole nanoseconds, without those that round to 0."""
    return {name: float(round(ns)) for name, ns in column.items() if round(ns)}


def _conversion(key: Conversion, codes: Profile, rounded: Profile, moves: Mapping[Hashable, float]) -> float:
    """Time of a conversion: as measured where the network on codes has one, else with the change of layout."""
    if key in codes.charges:
        return codes.charges[key]
    return rounded.charges.get(key, 0.0) + moves.get(key, 0.0)


# Times of a network's operators in the library that a target builds: in float, on codes, and of conversions between.
#
# Libraries of a few plans are timed, or their times predicted, kernel by kernel: all in float; all on codes; and sites
# quantized in turn, so that no operator has all that it needs and every tensor is converted. A kernel does the work of
# several operators: what it takes is charged to the layer among them that multiplies the most, else to the last one.
# Borders and copies are charged to what reads them.

LIBRARY_SECONDS, FEW_LIBRARY_SECONDS = 4.0, 3.0
# As many as a library is verified with: what never varies among them is built in.
SAMPLES = 4


@dataclass(frozen=True)
class LibraryMeter:
    """Times libraries of a target; see `Clock`. store: a folder of what was built before."""

    target: str
    timer: Timer
    store: Path

    @classmethod
    def of(cls, chosen: Chosen, store: Path) -> "LibraryMeter":
        """Raises TargetError where what the target builds cannot be timed here."""
        return cls(chosen.name, chosen.timer, store)

    def measure(self, analysis: Analysis, options: CompileOptions, progress: Progress) -> OpLatencies:
        """Times of the libraries of a few plans."""
        network = network_of(analysis)
        quantized = [[], [site.name for site in analysis.sites], *turns(analysis.sites, network)]
        plans = [any_plan(analysis, options, {name: analysis.ranges[name] for name in names}) for names in quantized]
        with progress.stage(f"{'time' if self.timer.is_measured else 'predict'} the library's operators"):
            result = self._profiles(analysis, [_built(analysis, plan) for plan in plans], LIBRARY_SECONDS)
        times = times_of(network, result, self.timer.runtime, self.target)
        return replace(times, is_measured=self.timer.is_measured)

    def latencies(self, analysis: Analysis, options: CompileOptions, plan: Plan) -> tuple[float, float]:
        """Of the library in float, and of that of a plan."""
        graphs = [_built(analysis, one) for one in (any_plan(analysis, options, {}), plan)]
        real, quantized = self._profiles(analysis, graphs, FEW_LIBRARY_SECONDS)
        return real.nanoseconds, quantized.nanoseconds

    def profiles(self, analysis: Analysis, options: CompileOptions, fitted: QuantizedModel) -> tuple[Profile, Profile]:
        """Of the library in float, and of the delivered one."""
        delivered = LoweredPlan(fitted.plan, fitted.lowered, fitted.exported)
        real, quantized = self._profiles(
            analysis, [_built(analysis, any_plan(analysis, options, {})), delivered], FEW_LIBRARY_SECONDS
        )
        return real, quantized

    def _profiles(self, analysis: Analysis, graphs: "Sequence[LoweredPlan]", seconds: float) -> list[Profile]:
        samples = list(analysis.held_back.of_main_size().few(SAMPLES))
        pairs = [(graph.lowered, graph.exported) for graph in graphs]
        timed = self.timer(pairs, samples, self.store, seconds)
        operators = {operator.node for operator in network_of(analysis).operators}
        return [
            Profile(program.nanoseconds, charges(program, graph, operators, analysis.macs), {}, False)
            for program, graph in zip(timed, graphs, strict=True)
        ]


@dataclass(frozen=True)
class LoweredPlan:
    """What a library is built of: a plan, lowered and packed."""

    plan: Plan
    lowered: Lowered
    exported: Exported


def _built(analysis: Analysis, plan: Plan) -> LoweredPlan:
    return LoweredPlan(plan, *packed(analysis, plan, table_parameters(analysis, plan.formats)))


def turns(sites: Sequence[ScaleGroup], network: Network) -> list[list[str]]:
    """Sites in groups, by name: no operator that needs several of them has all in one."""
    of = {tensor: site.name for site in sites for tensor in site.tensors}
    needs = [frozenset(of[tensor] for tensor in operator.tensors) for operator in network.operators]
    groups: list[list[str]] = []
    for site in sites:
        bound = [need for need in needs if site.name in need and len(need) > 1]
        free = (group for group in groups if not any(need <= {*group, site.name} for need in bound))
        group = next(free, None)
        if group is None:
            groups.append([site.name])
        else:
            group.append(site.name)
    return groups


def times_of(network: Network, profiles: Sequence[Profile], runtime: str, target: str) -> OpLatencies:
    """Times from profiles of the float network, of all on codes, and of others with conversions."""
    real, codes, *others = (profile.charges for profile in profiles)
    floats = {o.node: real.get(o.node, 0.0) for o in network.operators}
    integers = {o.node: codes.get(o.node, 0.0) for o in network.operators if o.tensors}
    quantize, dequantize = (
        {edge.tensor: _first((what, edge.tensor), [codes, *others]) for edge in network.edges}
        for what in ("quantize", "dequantize")
    )
    return OpLatencies(runtime, known(floats), known(integers), known(quantize), known(dequantize), target=target)


def _first(key: Hashable, columns: Sequence[Mapping[Hashable, float]]) -> float:
    return next((column[key] for column in columns if key in column), 0.0)


def charges(
    program: TimedProgram, graph: LoweredPlan, operators: Collection[str], macs: Mapping[str, int]
) -> dict[Hashable, float]:
    """Nanoseconds by operator, or by ("quantize" or "dequantize", tensor)."""
    charged = _Charged(program.calls, graph, operators, macs)
    result: dict[Hashable, float] = {}
    for call in program.calls:
        key = charged.key(call)
        result[key] = result.get(key, 0.0) + call.nanoseconds
    return result


class _Charged:
    """What the calls of a library are charged to."""

    def __init__(
        self, calls: Sequence[TimedCall], graph: LoweredPlan, operators: Collection[str], macs: Mapping[str, int]
    ) -> None:
        self.keys, self.operators, self.macs = charged_to(graph.lowered, graph.plan), operators, macs
        self.makers = {str(value.name): node for node in graph.lowered.model.graph for value in node.outputs}
        self.call_values = {name for call in calls for name in (call.output, call.value)}
        self.outputs = {call.output for call in calls}
        self.readers: dict[str, TimedCall] = {}
        for call in calls:
            for name in call.inputs:
                self.readers.setdefault(name, call)

    def key(self, call: TimedCall) -> Hashable:
        """Of what a call computes; a copy's is that of what reads it, or that of the value which it is of."""
        result = [self.keys.get(str(node.outputs[0].name)) for node in self._computed(call)]
        layers = [key for key in result if key in self.operators]
        if layers:
            return max(layers, key=lambda key: self.macs.get(str(key), 0))
        if conversions := [key for key in result if isinstance(key, tuple)]:
            return conversions[0]
        reader = self.readers.get(call.output)
        return self.keys.get(call.value) if reader is None else self.key(reader)

    def _computed(self, call: TimedCall) -> Iterator[ir.Node]:
        """The nodes of the lowered graph whose work a call does, the last one first."""
        if call.output != call.value and call.value in self.outputs:
            return  # a copy of a value that another call makes
        pending, seen = [call.value], set[str]()
        while pending:
            name = pending.pop(0)
            if name in seen or name not in self.makers or (name != call.value and name in self.call_values):
                continue
            seen.add(name)
            node = self.makers[name]
            yield node
            pending += [str(value.name) for value in node.inputs if value is not None]
