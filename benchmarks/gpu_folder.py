"""What a machine with a GPU needs to compare and time CUDA libraries, in one folder; made where no GPU is."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ("gpu.py", "gpu_runs.py", "gpu_network.py")
LIBRARIES = ("libtvm_runtime.so", "libtvm_runtime_cuda.so")
MOST_BYTES, LARGE_BYTES = 60 << 20, 2 << 20


def prepare(folder: Path, artifacts: Sequence[Path], sides: Sequence[int], tiles: int) -> int:
    """Fill an empty folder; its bytes. tiles: ways to cut each dense product."""
    folder.mkdir(parents=True)
    for script in SCRIPTS:
        shutil.copy(Path(__file__).with_name(script), folder)
    _copy_packages(folder / "lib")
    for path in artifacts:
        _network(path, folder / "networks" / path.resolve().name)
    command = [sys.executable, __file__, str(folder), json.dumps([list(sides), tiles])]
    subprocess.run(command, check=True)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > MOST_BYTES:
        raise SystemExit(f"{folder} has {size:,} bytes, and may have {MOST_BYTES:,}: give fewer or smaller artifacts")
    return size


def _copy_packages(room: Path) -> None:
    """ptqc, tvm_ffi and the runtimes, for this version of Python."""
    left_out = shutil.ignore_patterns("__pycache__", "include", "3rdparty", "*.pyx", "*.a")
    shutil.copytree(ROOT / "ptqc", room / "ptqc", ignore=shutil.ignore_patterns("__pycache__"))
    for package in ("tvm_ffi", "typing_extensions"):
        spec = find_spec(package)
        source = Path(str(spec and spec.origin))
        if source.name == "__init__.py":
            shutil.copytree(source.parent, room / package, ignore=left_out)
        else:
            shutil.copy(source, room)
    for spec in (find_spec("tvm"), find_spec("nvidia")):
        places = [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
        for name in LIBRARIES:
            candidates = [place / "lib" / name for place in places if (place / "lib" / name).is_file()]
            shutil.copy(candidates[0], room) if candidates else None
        for place in places:
            for path in (place / "cu13" / "lib").glob("libcudart.so.*"):
                shutil.copy(path, room)


def _network(path: Path, room: Path) -> None:
    """An artifact's library, its calls, and what ONNX Runtime computes, as it lies in memory."""
    from ptqc.artifact.bisect import read_kernels, seen_inputs
    from ptqc.artifact.folder import GOLDEN, load
    from ptqc.artifact.golden import Golden
    from ptqc.codegen.program.inputs import edge_runs
    from ptqc.codegen.program.listing import Listing
    from ptqc.codegen.program.verify import Loaded, Runnable
    from ptqc.execution.onnxruntime import Runner
    from ptqc.utils.store import write_npz

    artifact = load(path)
    shutil.copytree(artifact.folder / "cuda", room)
    document = read_kernels(room / "kernels.json")
    listing, names = Listing.from_json(document["libraries"]["cuda"]), document["names"]
    loaded = Loaded(listing, cast(Runnable, SimpleNamespace(constants=[])))
    runner = Runner(artifact.path, list(names.values()))
    sample = Golden.read(artifact.folder / GOLDEN).inputs[0]
    runs = [("sample", sample, runner.run(sample)), *edge_runs(runner, seen_inputs(document))]
    is_large = sum(array.nbytes for array in runs[0][2].values()) > LARGE_BYTES
    for number, (_, feeds, outputs) in enumerate(runs[:1] if is_large else runs):
        values = {**feeds, **{name: outputs[short] for name, short in names.items()}}
        write_npz(room / f"values-{number}.npz", dict(_memory(loaded, values)))
    _write_calls(listing, room)


def _write_calls(listing: Any, room: Path) -> None:
    """What is called with what."""
    calls = [
        {
            "kernel": call.kernel,
            "arguments": list(call.arguments),
            "placed": list(call.placed),
            "output": call.output,
            "value": call.value,
            "constants": call.constants,
            "shape": list(listing.layouts[call.output].axes),
            "dtype": listing.layouts[call.output].stored,
            "of_chip": call.accuracy.of_chip,
        }
        for call in listing.calls
    ]
    (room / "calls.json").write_text(json.dumps({"calls": calls, "inputs": list(listing.inputs)}))


def _memory(loaded: Any, values: dict[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """What ONNX Runtime tells, as kernels take and make it."""
    for name in loaded.listing.inputs:
        yield name, loaded.buffer(name, values[name])
    for call in loaded.listing.calls:
        if call.value in values:
            yield call.output, loaded.buffer(call.output, values[call.value])


def libraries(folder: Path, sides: Sequence[int], tiles: int) -> None:
    """Libraries of single kernels: to be timed, and to be compared. A process of its own, which loads stand-ins."""
    from ptqc.codegen.cuda.emulator.opening import load_stand_ins

    load_stand_ins()
    _products(folder / "products", sides, tiles)
    _layers(folder / "layers" / "layers by warpgroups")


def _side_by_side(products: Sequence[tuple[Any, Any, Any, Any]], folder: Path, gpus: Sequence[str]) -> Any:
    """Write a library of kernels with one input each into a new folder; its program."""
    from ptqc.codegen.cuda import building
    from ptqc.codegen.cuda.backend import CUDA
    from ptqc.codegen.cuda.toolkit import Toolkit
    from ptqc.codegen.program.program import Program, ProgramStep

    folder.mkdir(parents=True)
    layouts = {f"x{i}": x for i, (_, x, _, _) in enumerate(products)}
    layouts |= {f"y{i}": y for i, (_, _, y, _) in enumerate(products)}
    kernels = [kernel.compile(CUDA.loops) for kernel, *_ in products]
    steps = tuple(ProgramStep(kernel, (f"x{i}",), f"y{i}", f"y{i}") for i, kernel in enumerate(kernels))
    inputs, outputs = (tuple(f"{end}{i}" for i in range(len(products))) for end in "xy")
    program = Program(steps, layouts, inputs, outputs)
    building.write(program, Toolkit.require(), list(gpus), folder)
    shutil.rmtree(folder / "emulated")
    return program


def _products(folder: Path, sides: Sequence[int], tiles: int) -> None:
    """Large products, without their weights; what each is."""
    from ptqc.codegen.cuda.options import Gpu

    products = [
        *(one for side in sides for one in _square(side, tiles)),
        *(one for side in sides for one in _grouped_squares(side)),
        *map(_sparse_square, sides),
        *map(_float8_square, sides),
    ]
    program = _side_by_side(products, folder, get_args(Gpu))
    steps, layouts = program.steps, program.layouts
    entries = [
        {
            "kernel": step.kernel.name,
            "constants": len(step.kernel.constants),
            "inputs": [layouts[step.inputs[0]].stored, list(layouts[step.inputs[0]].axes)],
            "outputs": [layouts[step.output].stored, list(layouts[step.output].axes)],
            **description,
        }
        for step, (*_, description) in zip(steps, products, strict=True)
    ]
    size = (folder / "weights.bin").stat().st_size
    (folder / "products.json").write_text(json.dumps({"weights_bytes": size, "products": entries}))
    (folder / "weights.bin").unlink()


def _layers(folder: Path) -> None:
    """Small layers by products of warpgroups, with what NumPy computes: no network has any yet."""
    from ptqc.codegen.program.listing import Listing
    from ptqc.codegen.program.verify import Loaded, Runnable
    from ptqc.utils.store import write_npz

    layers = [_grouped_layer(bits, side) for bits, side in ((8, 3), (4, 1), (3, 3))]
    program = _side_by_side(layers, folder, ["sm_90a"])
    listing = Listing.of(program)
    loaded = Loaded(listing, cast(Runnable, SimpleNamespace(constants=[])))
    values = {
        f"{end}{i}": array for i, (*_, arrays) in enumerate(layers) for end, array in zip("xy", arrays, strict=True)
    }
    write_npz(folder / "values-0.npz", dict(_memory(loaded, values)))
    _write_calls(listing, folder)


def _grouped_layer(bits: int, side: int) -> tuple[Any, Any, Any, tuple[np.ndarray, np.ndarray]]:
    """Three samples of 80 channels by windows of side × side, to 200 channels."""
    from ptqc.codegen.cuda import costs, wgmma
    from ptqc.codegen.cuda.coded_layer import CodedLayer
    from ptqc.codegen.cuda.packed_weights import Coding
    from ptqc.codegen.kernels.epilogue import Requantization
    from ptqc.codegen.program.layout import Layout
    from ptqc.codegen.program.program import Window

    random, half = np.random.default_rng(bits), 2 ** (bits - 1)
    codes = random.integers(0, 256, (3, 80, 8, 7)).astype(np.uint8)
    weights = random.integers(-half, half, (200, 80, side, side)).astype(np.int8)
    seen = np.lib.stride_tricks.sliding_window_view(codes.astype(np.int64), (side, side), (2, 3))
    sums = np.einsum("nchwij,ocij->nohw", seen, weights.astype(np.int64), optimize=True)
    bias = random.integers(-9999, 9999, 200).astype(np.int32)
    factor = (random.uniform(60, 300, 200) / np.abs(sums).max()).astype(np.float32)
    scaled = (sums + bias[:, None, None]).astype(np.float32) * factor[:, None, None]
    wanted = np.clip(np.rint(scaled) + 101, 0, 255).astype(np.uint8)
    window, coding = Window(80, (8, 7), (side, side)), Coding.of(weights, weights[0].size)
    x, y = Layout(codes.shape[1:], "uint8"), Layout(wanted.shape[1:], "uint8")
    tiles = costs.ranked_groups(window, 200, coding)[0]
    layer = CodedLayer(x, y, window, weights, Requantization(bias, factor, 101))
    return wgmma.write(tiles, coding, layer), x, y, (codes, wanted)


def _square(side: int, tiles: int) -> Iterator[tuple[Any, Any, Any, dict[str, Any]]]:
    """Codes of side × side times as many weights of 8 bits, in the tiles that are predicted to be fastest, and in
    others that a compile would try on a chip of which nothing is known."""
    from ptqc.codegen.cuda import mma
    from ptqc.codegen.cuda.backend import CUDA
    from ptqc.codegen.cuda.tuning import tried
    from ptqc.codegen.cuda.variants import predicted_best
    from ptqc.codegen.program.program import ProgramStep

    layer = _square_layer(side, _weights(side))
    kernel = predicted_best(mma.variants(layer))
    yield kernel, layer.x, layer.y, {"what": "product", "sizes": [side, side, side]}
    for variant in tried(ProgramStep(kernel.compile(CUDA.loops), ("x",), "y", "y"), gpu="")[1:tiles]:
        description = {"what": "product", "sizes": [side, side, side], "tiles": variant.label}
        yield variant.kernel(), layer.x, layer.y, description


def _grouped_squares(side: int) -> Iterator[tuple[Any, Any, Any, dict[str, Any]]]:
    """The same by products of warpgroups: for each size of the instruction what is predicted to be fastest."""
    from ptqc.codegen.cuda import wgmma
    from ptqc.codegen.cuda.tiles import ROWS

    layer = _square_layer(side, _weights(side))
    best = {variant.tiles.cut.row_tiles * ROWS: variant for variant in reversed(wgmma.variants(layer))}
    for columns, variant in sorted(best.items()):
        yield variant.kernel(), layer.x, layer.y, {"what": f"product by m64n{columns}k32", "sizes": [side, side, side]}


def _sparse_square(side: int) -> tuple[Any, Any, Any, dict[str, Any]]:
    """The same where two of each four weights are zero, on sparse tensor cores whatever is predicted."""
    from ptqc.codegen.cuda import mma_sparse
    from ptqc.codegen.cuda.variants import predicted_best
    from ptqc.formats.sparse import PATTERNS

    mask = PATTERNS[np.random.default_rng(side).integers(0, len(PATTERNS), side * side // 4)]
    layer = _square_layer(side, _weights(side) * mask.reshape(side, side, 1, 1).astype(np.int8))
    kernel = predicted_best(mma_sparse.variants(layer))
    return kernel, layer.x, layer.y, {"what": "sparse product", "sizes": [side, side, side]}


def _float8_square(side: int) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Numbers of FP8 with as many weights, and results in float32."""
    from ptqc.codegen.cuda import mma_fp8
    from ptqc.codegen.cuda.variants import predicted_best
    from ptqc.codegen.kernels.backend import Float8LayerSpec
    from ptqc.codegen.program.layout import Layout

    weights = np.random.default_rng(side).integers(0, 127, (side, side, 1, 1)).astype(np.uint8)
    layer, y, ones = _square_layer(side, weights), Layout((side, 1, side), "float32"), np.ones(side, np.float32)
    kernel = predicted_best(mma_fp8.variants(Float8LayerSpec(layer.x, y, layer.window, weights, ones, ones)))
    return kernel, layer.x, y, {"what": "FP8 product", "sizes": [side, side, side]}


def _square_layer(side: int, weights: np.ndarray) -> Any:
    """Side × side codes times as many weights."""
    from ptqc.codegen.cuda.coded_layer import CodedLayer
    from ptqc.codegen.kernels.epilogue import Requantization
    from ptqc.codegen.program.layout import Layout
    from ptqc.codegen.program.program import Window

    scales = Requantization(np.zeros(side, np.int32), np.full(side, 1e-4, np.float32), 128)
    x, y = (Layout((side, 1, side), "uint8") for _ in range(2))
    return CodedLayer(x, y, Window(side, (1, side)), weights, scales)


def _weights(side: int) -> np.ndarray:
    """Of 8 bits."""
    return np.random.default_rng(side).integers(-127, 128, (side, side, 1, 1)).astype(np.int8)


if __name__ == "__main__":
    libraries(Path(sys.argv[1]), *json.loads(sys.argv[2]))
