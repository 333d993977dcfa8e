"""Tiny models and what a whole compile makes of them, for the tests of the compiler and of its last stages."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
from onnx import numpy_helper
from threadpoolctl import threadpool_limits

import ptqc
from ptqc.artifact.folder import Artifact
from ptqc.codegen.onnxruntime import size
from ptqc.frontend import read_model
from ptqc.ir.plan import Plan
from ptqc.options import CompileOptions
from ptqc.passes.allocate.fit import fit
from ptqc.passes.allocate.state import QuantizedModel
from ptqc.passes.analyze import measure
from ptqc.passes.quantize.phases import Analysis
from ptqc.passes.quantize.prepare import CanonicalModel, gather, prepare
from ptqc.utils.progress import SILENT
from ptqc.utils.store import Store, file_digest

# A residual network: every layer, the addition and the pool have integer kernels.
RESIDUAL = """g (float[N,3,8,8] x) => (float[N,10] y) {
    a = Conv<pads=[1,1,1,1]>(x, w1, b1)
    ar = Relu(a)
    b = Conv<pads=[1,1,1,1], strides=[2,2]>(ar, w2, b2)
    br = Relu(b)
    c = Conv<pads=[1,1,1,1]>(br, w3, b3)
    cs = Add(c, br)
    cr = Relu(cs)
    p = GlobalAveragePool(cr)
    f = Flatten(p)
    y = Gemm<transB=1>(f, w4, b4)
}"""


def proto(graph: str, opset: int = 18, /, **constants: np.ndarray | np.generic) -> onnx.ModelProto:
    """A model in ONNX's text form with these initializers."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {graph}')
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()
    )
    return model


def weight(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal numbers that keep the size of activations, for weights with the output channels first."""
    fan_in = np.prod(shape[1:]) if len(shape) > 1 else 100
    return (np.random.default_rng(seed).standard_normal(shape) * np.sqrt(2 / fan_in)).astype(np.float32)


def samples(*shape: int, count: int = 32, seed: int = 7) -> np.ndarray:
    """Normal inputs, stacked."""
    return np.random.default_rng(seed).standard_normal((count, *shape)).astype(np.float32)


def residual(opset: int = 18) -> onnx.ModelProto:
    """The residual network with its weights: 14,666 of them."""
    shapes = {"w1": (16, 3, 3, 3), "w2": (32, 16, 3, 3), "w3": (32, 32, 3, 3), "w4": (10, 32)}
    weights = {name: weight(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    biases = {f"b{name[1]}": weight(shape[0], seed=9) for name, shape in shapes.items()}
    return proto(RESIDUAL, opset, **weights, **biases)


def product() -> onnx.ModelProto:
    """One layer, which compiles fastest."""
    return proto("g (float[N,16] x) => (float[N,32] y) { y = Gemm(x, w) }", w=weight(16, 32))


def quick() -> threadpool_limits:
    """One thread of every pool, not of BLAS alone: threads that wait for a busy core take most of the time."""
    return threadpool_limits(1)


# The command, for `python -c`: what is compiled is compared in speed for a moment, else that is most of its time.
QUICK = "from ptqc.execution import speed; speed.SECONDS = 0.02; from ptqc.cli.main import run; run()"
# What tells times and memory of a compile; no two are alike.
VOLATILE = ("run.json", "report.html")


def digests(folder: Path, *left_out: str) -> dict[str, str]:
    """SHA-256 of the files of an artifact by name, but for what differs from run to run."""
    return {
        path.name: file_digest(path) for path in sorted(folder.iterdir()) if path.name not in (*VOLATILE, *left_out)
    }


def alone() -> None:
    """This process on one processor: threads that wait for each other take most of the time where many want to run."""
    if hasattr(os, "sched_setaffinity"):
        mine = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {mine[os.getpid() % len(mine)]})


def compiled(
    model: onnx.ModelProto | Path, data: object, folder: Path, budget: str | Sequence[str] | None = None, **options: Any
) -> Artifact:
    """The artifact of a model in `folder`/out, with a store of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(model, onnx.ModelProto):
        onnx.save(model, folder / "model.onnx")
        model = folder / "model.onnx"
    settings = {"output": folder / "out", "cache": folder / "cache"} | options
    with quick():
        return ptqc.compile(model, calibration=data, budget=budget, **settings)


@contextmanager
def one_at_a_time(place: Path) -> Iterator[None]:
    """Processes that want to make the same thing there wait for each other."""
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def kept_budgets(artifact: Artifact) -> dict[str, bool]:
    """By kind of budget, whether the file meets it."""
    return {budget.kind: budget.kept for budget in artifact.budgets}


def compiled_once(model: onnx.ModelProto, data: object, folder: Path, *budget: str, **options: Any) -> Artifact:
    """The same, by the first process that wants it in this folder; the others wait for it, and open it.

    Whoever opens it leaves it as it is.
    """
    with one_at_a_time(folder):
        if (folder / "out").is_dir():
            return ptqc.load(folder / "out")
        return compiled(model, data, folder, *budget, **options)


def store_of(artifact: Artifact) -> Path:
    """The store of an artifact that `compiled` made."""
    return artifact.folder.parent / "cache"


def told_bound(artifact: Artifact) -> int:
    """What the solver cannot know: whether the tuned biases need int16 or int32, 2 bytes a channel, with the length
    prefixes of that initializer (dimensions stay, raw data and message grow by one byte each at most)."""
    layers = onnx.load(artifact.path).graph.node
    channels = [b.dims[0] for b in onnx.load(artifact.path).graph.initializer if b.data_type in (5, 6) and len(b.dims)]
    assert len(layers) > len(channels)
    return size.BOUND + sum(2 * c + 2 for c in channels)


def assert_same_interface(original: onnx.ModelProto, packed: onnx.ModelProto) -> None:
    """Inputs, outputs and metadata are those of the original."""
    for kind in ("input", "output"):
        before, after = getattr(original.graph, kind), getattr(packed.graph, kind)
        assert [v.name for v in before] == [v.name for v in after]
        assert [v.type for v in before] == [v.type for v in after]
    assert list(original.metadata_props) == list(packed.metadata_props)


@dataclass(frozen=True)
class Measured:
    """A network in normal form with its measurements, and a few of its samples."""

    prepared: CanonicalModel
    context: Analysis
    options: CompileOptions
    feeds: tuple[dict[str, np.ndarray], ...]

    @property
    def model(self) -> ir.Model:
        """The float network in normal form."""
        return self.prepared.model

    def fit(self, limit: int | None = None, plan: Plan | None = None) -> QuantizedModel:
        """The file within a limit, or of a plan."""
        with quick():
            return fit(self.context, self.options, limit, plan)


def measured_model(model: onnx.ModelProto, data: object, folder: Path, **options: Any) -> Measured:
    """A model with its measurements; `folder` holds its samples."""
    onnx.save(model, folder / "model.onnx")
    source = read_model(folder / "model.onnx")
    chosen = CompileOptions.of(options)
    with quick():
        result = gather(source, data, folder / "samples", chosen.samples, None, SILENT)
        prepared = prepare(source, result, SILENT)
        context, _, _ = measure(prepared, chosen, Store(folder / "cache"), SILENT)
    return Measured(prepared, context, chosen, tuple(context.held_back[i] for i in range(4)))


def measure_residual(folder: Path, **options: Any) -> Measured:
    """The residual network with measurements of a few widths."""
    return measured_model(
        residual(), samples(3, 8, 8), folder, **{"bits": (2, 4, 7), "activations": "integer", **options}
    )
