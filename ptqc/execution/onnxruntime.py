"""Running an `onnx_ir.Model` (or a file) in ONNX Runtime, with any inner values as extra outputs."""

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from ptqc.errors import Interrupted, ModelError
from ptqc.execution.saturation import EXACT_SUMS, NOT_WITH_EXACT_SUMS, apart, can_saturate, saturates
from ptqc.ir import protos, zipmaps
from ptqc.ir.external import (
    ROOT,
    SpilledTensors,
    fits_in_memory,
    has_references,
    hold_external,
    is_in_files,
    is_split,
    refers,
    write_split,
)
from ptqc.ir.protos import every_node
from ptqc.utils.scratch import scratch

# Models whose large tensors lie in files, as ONNX Runtime opens them: the graph is a message, tensors have paths.

PLACE: Mapping[str, str] = {"session.model_external_initializers_file_folder_path": ROOT}
# It would rearrange weights for its products, which is a copy of each of them.
PREPACKING = "session.disable_prepacking"
SETTINGS: Mapping[str, str] = {**PLACE, PREPACKING: "1"}
# What it would compute of weights when it loads a model, such as casts to float32, would be copies, too.
WITHOUT = ("ConstantFolding",)
# But integer kernels are found only where weights are unpacked when a file is loaded, and the scales of products in
# blocks must be there by then: the kernel takes others for none, and standard operators would not become one.
LOADED_WHOLE = frozenset({"QuantizeLinear", "MatMulNBits", "GatherBlockQuantized"})


def message(model: ir.Model) -> onnx.ModelProto:
    """The model as a message, in which tensors that are in files are references, relative to ROOT."""
    proto = ir.serde.serialize_model(model)
    for tensor in proto.graph.initializer:
        _root(tensor)
    return proto


def spilled_message(model: ir.Model, spilled: SpilledTensors) -> onnx.ModelProto:
    """The model as a message without large tensors: those that it holds go to a file, one after the other."""
    graph = protos.interface(model)
    graph.name = model.graph.name or "graph"
    graph.node.extend(map(ir.serde.serialize_node, model.graph))
    values = (value for node in model.graph for value in node.outputs)
    typed = (v for v in values if v.name and v.type is not None and not v.is_graph_output())
    graph.value_info.extend(map(ir.serde.serialize_value, typed))
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or isinstance(tensor, ir.ExternalTensor) or not _has_plain_bytes(tensor):
            graph.initializer.extend([] if tensor is None else [tensor_message(tensor, name)])
        else:
            graph.initializer.append(spilled.make(name, tensor.numpy()))
    imports = [onnx.helper.make_opsetid(*item) for item in model.opset_imports.items()]
    functions = map(ir.to_proto, model.functions.values())
    return onnx.ModelProto(ir_version=model.ir_version, graph=graph, opset_import=imports, functions=functions)


def _has_plain_bytes(tensor: ir.TensorProtocol) -> bool:
    """Whether each number takes whole bytes."""
    return tensor.dtype != ir.DataType.STRING and tensor.dtype.bitwidth >= 8


def tensor_message(tensor: ir.TensorProtocol, name: str) -> onnx.TensorProto:
    """A tensor as a message of this name; a reference where it is in a file."""
    proto = ir.serde.serialize_tensor(tensor)
    proto.name = name
    _root(proto)
    return proto


def _root(tensor: onnx.TensorProto) -> None:
    for entry in tensor.external_data if refers(tensor) else ():
        if entry.key == "location":
            entry.value = Path(entry.value).relative_to(ROOT).as_posix()


def is_loaded_whole(proto: onnx.ModelProto) -> bool:
    """Whether a file computes as it should only if constants are computed when it is loaded."""
    return any(node.op_type in LOADED_WHOLE or _is_in_blocks(node) for node in proto.graph.node)


def _is_in_blocks(node: onnx.NodeProto) -> bool:
    return node.op_type == "DequantizeLinear" and any(a.name == "block_size" for a in node.attribute)


def without_tensors(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a skeleton for libraries that read every tensor of a model: inputs stand for the references."""
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    del bare.graph.initializer[:]
    bare.graph.initializer.extend(tensor for tensor in proto.graph.initializer if not refers(tensor))
    known = {value.name for value in proto.graph.input}
    for tensor in proto.graph.initializer:
        if refers(tensor) and tensor.name not in known:
            bare.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return bare


Feeds = dict[str, np.ndarray]

# A Loop need not end; nothing else that ONNX has can run for ever. Seconds for one run.
LOOP_LIMIT = 25.0


def session_options(*, threads: int = 0, optimize: bool = True, exact_sums: bool = True) -> ort.SessionOptions:
    """Options of a quiet CPU session; threads = 0 means all cores.

    exact_sums: whether 8-bit weights are added up exactly, also where that takes an option.
    """
    options = ort.SessionOptions()
    for name, value in EXACT_SUMS.items() if exact_sums and saturates() else ():
        options.add_session_config_entry(name, value)
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def open_session(
    model: bytes | str, options: ort.SessionOptions, without: Collection[str] = ()
) -> ort.InferenceSession:
    """A CPU session, without some of its optimizations.

    What fails is raised: ONNX Runtime would print it to stdout and try the same once more.
    """
    providers, left_out = ["CPUExecutionProvider"], list(without) or None
    return ort.InferenceSession(model, options, providers, disabled_optimizers=left_out, enable_fallback=0)


def reason_of(error: Exception) -> str:
    """What ONNX Runtime says of a failure, without the places in its sources that it names."""
    return str(error).rpartition("Status Message: ")[2].rpartition(" was false. ")[2].strip()


def open_proto(
    proto: onnx.ModelProto, options: ort.SessionOptions, without: Sequence[str] = (), *, timed: bool = False
) -> ort.InferenceSession:
    """A session of a model in memory, which adds up 8-bit weights exactly on every processor.

    What it refers to in files, relative to the root, is mapped from there. timed: see `Runner`.
    """
    left_out, is_skeleton = {*without}, has_references(proto)
    if is_loaded_whole(proto):
        left_out, timed = left_out - {*WITHOUT}, True
    if is_skeleton:
        for name, value in (PLACE if timed else SETTINGS).items():
            options.add_session_config_entry(name, value)
        left_out |= set() if timed else {*WITHOUT}
    elif is_split(proto):
        with scratch() as folder:
            path, _ = write_split(proto, Path(folder) / "model.onnx")
            return open_session(str(path), options, left_out)
    if saturates() and (is_skeleton or can_saturate(proto)):  # nobody looks at weights that are in files
        proto, left_out = apart(proto), {*left_out, *NOT_WITH_EXACT_SUMS}
    return open_session(proto.SerializeToString(), options, left_out)


def softmax_in_float64() -> bool:
    """How its integer softmax multiplies and divides: see `ptqc.ir.integer_arithmetic.softmax`."""
    return release(ort.__version__) >= (1, 32)


def release(version: str) -> tuple[int, ...]:
    """The first two numbers of a version, which compare as releases follow one another."""
    return tuple(int(part) for part in version.split(".")[:2])


def _with_taps(proto: onnx.ModelProto, taps: Iterable[str]) -> onnx.ModelProto:
    present = {output.name for output in proto.graph.output}
    for name in taps:
        if name not in present:
            proto.graph.output.append(onnx.ValueInfoProto(name=name))
            present.add(name)
    return proto


class Runner:
    """A model held by one ONNX Runtime session: a model, a proto of under 2 GB, or a file.

    taps: names of inner values that become extra outputs. Outputs that are maps come as the tensors of their scores; a
    file without taps is run as it is. lean: what depends on constants only, such as unpacked weights, is computed in
    every run and let go of, and memory goes back to the system. timed: what is in files is loaded to be as fast as for
    a user, whatever memory that takes.
    Raises ModelError when ONNX Runtime refuses the model.
    """

    def __init__(
        self,
        model: ir.Model | onnx.ModelProto | Path | str,
        taps: Sequence[str] = (),
        options: ort.SessionOptions | None = None,
        *,
        lean: bool = False,
        timed: bool = False,
    ) -> None:
        options = options or session_options()
        options.enable_cpu_mem_arena = options.enable_cpu_mem_arena and not lean
        try:
            model = zipmaps.as_tensors(model) if isinstance(model, onnx.ModelProto) else model
            self.session = _open(model, taps, options, WITHOUT if lean else (), timed=timed)
        except (OSError, Interrupted):  # of the disk, not of the model
            raise
        except Exception as error:  # ONNX Runtime raises a dozen types of its own
            raise ModelError(f"ONNX Runtime {ort.__version__} cannot load the model: {error}") from error
        self._loops = has_loop(model)
        self.inputs = [value.name for value in self.session.get_inputs()]
        self.outputs = [value.name for value in self.session.get_outputs()]

    def run(self, feeds: Feeds, outputs: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Values of the named outputs (default: all, taps included).

        Raises ModelError where a Loop does not end.
        """
        names = list(outputs) if outputs is not None else self.outputs
        if not names:  # which ONNX Runtime would take for all
            return {}
        if not self._loops:
            return dict(zip(names, self.session.run(names, feeds), strict=True))
        with _limited() as options:
            return dict(zip(names, self.session.run(names, feeds, options), strict=True))


def has_loop(model: ir.Model | onnx.ModelProto | Path | str) -> bool:
    """Whether a run of the model may go on for ever."""
    if isinstance(model, onnx.ModelProto):
        return any(node.op_type == "Loop" for node in every_node(model))
    if not isinstance(model, ir.Model):
        return False  # files are the compiler's own
    bodies: tuple[ir.Graph | ir.Function, ...] = (model.graph, *model.functions.values())
    return any(node.op_type == "Loop" for body in bodies for node in ir.traversal.RecursiveGraphIterator(body))


@contextmanager
def _limited() -> Iterator[ort.RunOptions]:
    """Options of a run that ends after LOOP_LIMIT."""
    options = ort.RunOptions()
    options.log_severity_level = 4
    timer = threading.Timer(LOOP_LIMIT, setattr, (options, "terminate", True))
    timer.daemon = True
    timer.start()
    try:
        yield options
    except Exception as error:  # ONNX Runtime raises a dozen types of its own
        if not options.terminate:
            raise
        raise ModelError(f"a run did not end within {LOOP_LIMIT:.0f} s: a Loop of the model may have no end") from error
    finally:
        timer.cancel()


def _open(
    model: ir.Model | onnx.ModelProto | Path | str,
    taps: Sequence[str],
    options: ort.SessionOptions,
    without: Sequence[str],
    *,
    timed: bool,
) -> ort.InferenceSession:
    if isinstance(model, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        return open_proto(_with_taps(copy, taps), options, without, timed=timed)
    if not isinstance(model, ir.Model):
        if not taps:
            return open_session(str(model), options, without)
        model = _loaded(Path(model))
    if fits_in_memory(_bytes_inside(model)) and not without:
        return open_proto(_with_taps(message(model), taps), options, without, timed=timed)
    spilled = SpilledTensors()  # the session keeps them mapped
    return open_proto(_with_taps(spilled_message(model, spilled), taps), options, without, timed=timed)


def _bytes_inside(model: ir.Model) -> int:
    """Bytes of the initializers that the model itself holds."""
    tensors = [value.const_value for value in model.graph.initializers.values()]
    return sum(t.nbytes for t in tensors if t is not None and not isinstance(t, ir.ExternalTensor))


def _loaded(path: Path) -> ir.Model:
    model = zipmaps.load(path)
    hold_external(model, path.parent, mapped=True)
    return model


def tensors_of(outputs: Mapping[str, object]) -> Feeds:
    """Every tensor among outputs, those of sequences numbered; optionals without a value are left out.

    Strings come as NumPy's own, not as objects.
    """
    tensors: Feeds = {}
    for name, value in outputs.items():
        parts = {f"{name}[{i}]": part for i, part in enumerate(value)} if isinstance(value, list) else {name: value}
        for key, array in parts.items():
            if isinstance(array, np.ndarray) and array.dtype.kind in "fiubOU":
                tensors[key] = array.astype(np.str_) if array.dtype.kind == "O" else array
    return tensors


def open_packed(packed: onnx.ModelProto, model: ir.Model, options: ort.SessionOptions | None = None) -> Runner:
    """What was made of a model, to be compared with it. Raises ModelError as `Runner`."""
    return Runner(packed, options=options, lean=is_lean(packed, model))


def is_lean(packed: onnx.ModelProto, model: ir.Model) -> bool:
    """Whether what was made of a model is compared with its weights unpacked in every run.

    ONNX Runtime unpacks all when it loads a file; into float they would be as large as the model, which does not fit
    into memory. Integer kernels are found only where they are unpacked when it is loaded.
    """
    return is_in_files(model) and computes_in_float(packed)


def computes_in_float(packed: onnx.ModelProto) -> bool:
    """Whether no operator of a packed file computes on integers."""
    return all(node.op_type != "QuantizeLinear" for node in packed.graph.node)


def run(model: ir.Model | Path | str, feeds: Feeds, taps: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Outputs and taps of one run (opens a session: for repeated runs keep a `Runner`)."""
    return Runner(model, taps).run(feeds)
