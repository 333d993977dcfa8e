"""Comparing and timing the libraries of a prepared folder, on a GPU, or without timing in the emulator.

Needs NumPy, and PyTorch where there is a GPU; all else lies in the folder.
"""

import ctypes
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gpu_network
import numpy as np

Row = dict[str, Any]
# Of real values, as a share of the largest in their tensor.
TOLERANCE, REPEATED, ROUNDS, BATCHES = 1e-4, 20, 15, (1, 64)
COPIED = 1 << 29
# Two places of four in ascending order: what a half of each byte of metadata may be.
PLACES = np.array([low | high << 2 for high in range(4) for low in range(high)], np.uint8)
KINDS = {
    "product": "int8",
    "product by m64n64k32": "int8, wgmma m64n64k32,",
    "product by m64n128k32": "int8, wgmma m64n128k32,",
    "sparse product": "int8, 2:4,",
    "FP8 product": "FP8",
}
# The chips that have products of warpgroups; on others such kernels multiply by single warps.
WITH_WARPGROUPS, CHIP = (9, 0), "PTQC_EMULATOR_CHIP"


class Emulator:
    """Opens libraries on the stand-ins; nothing is timed."""

    name = "the emulator"
    torch: Any = None

    def __init__(self, room: Path) -> None:
        from ptqc.codegen.cuda.emulator.opening import load_stand_ins

        load_stand_ins()
        os.environ[CHIP] = "sm_90a"
        self._room = room

    def open(self, folder: Path) -> Any:
        from ptqc.codegen.cuda.emulator.opening import open_delivered

        room = self._room / folder.name
        room.mkdir()
        return open_delivered(folder, room)

    def microseconds(self, call: Callable[[], object]) -> float | None:
        call()
        return None

    run_microseconds = microseconds


class Gpu:
    """The first GPU, by torch. libraries: a folder that has CUDA's runtime."""

    def __init__(self, libraries: Path) -> None:
        import torch

        for path in libraries.glob("libcudart.so.*"):
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
        self.torch, self.name = torch, torch.cuda.get_device_name(0)

    def open(self, folder: Path) -> Any:
        from ptqc.runtime.cuda_library import CudaLibrary

        return CudaLibrary.open(folder, graph=True)

    def microseconds(self, call: Callable[[], object]) -> float | None:
        """The median of several rounds of calls in a CUDA graph."""
        torch = self.torch
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            for _ in range(3):
                call()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
            for _ in range(REPEATED):
                call()
        return self._median(graph.replay)

    def run_microseconds(self, run: Callable[[], object]) -> float | None:
        """The same of runs that are CUDA graphs already."""

        def runs() -> None:
            for _ in range(REPEATED):
                run()

        runs()
        return self._median(runs)

    def _median(self, repeated: Callable[[], object]) -> float:
        times = []
        for _ in range(ROUNDS):
            begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            repeated()
            end.record()
            end.synchronize()
            times.append(1e3 * begin.elapsed_time(end) / REPEATED)
        return statistics.median(times)


def parts(folder: Path, machine: Emulator | Gpu) -> dict[str, Callable[[], Iterator[Row]]]:
    """What there is to run, by name; each takes some minutes at most and yields a row for each line of results."""
    networks = {path.name: partial(_network, path, machine) for path in sorted((folder / "networks").glob("*"))}
    layers = {path.name: partial(_layers, path, machine) for path in sorted((folder / "layers").glob("*"))}
    others = {
        "bandwidth": partial(_bandwidth, machine),
        "torch": partial(_torch, machine),
        "ONNX Runtime": partial(_onnxruntime, machine),
        "products": partial(_products, folder / "products", machine),
    }
    return {**networks, **layers, **others}


def _network(path: Path, machine: Emulator | Gpu) -> Iterator[Row]:
    library = machine.open(path)
    yield _compared(path, library, on_a_gpu=machine.torch is not None)
    yield from _network_times(path.name, library, machine)


def _layers(path: Path, machine: Emulator | Gpu) -> Iterator[Row]:
    yield _compared(path, machine.open(path), on_a_gpu=machine.torch is not None)


def _bandwidth(machine: Emulator | Gpu) -> Iterator[Row]:
    """What copying within the memory of the GPU reaches: the limit of products with few rows."""
    if machine.torch is None:
        return
    source = machine.torch.zeros(COPIED, dtype=machine.torch.uint8, device="cuda")
    target = machine.torch.empty_like(source)
    microseconds = machine.microseconds(lambda: target.copy_(source))
    if microseconds:
        yield _timed(f"copy of {COPIED >> 20} MiB, {2e-3 * COPIED / microseconds:,.0f} GB/s", microseconds)


def _compared(path: Path, library: Any, *, on_a_gpu: bool) -> Row:
    """Every kernel on ONNX Runtime's values, as at compile time."""
    document = json.loads((path / "calls.json").read_text())
    integers = different = reals = beyond = 0
    for values in sorted(path.glob("values-*.npz")):
        with np.load(values) as archive:
            expected = dict(archive)
        computed, first = dict(expected), 0
        for call in document["calls"]:
            count = len(next(iter(expected.values())))
            output = np.zeros((count, *call["shape"]), call["dtype"])
            for name in call["placed"]:
                np.bitwise_or(output.view(np.uint8), computed[name].view(np.uint8), out=output.view(np.uint8))
            constants = library.constants[first : first + call["constants"]]
            first += call["constants"]
            library.kernel(call["kernel"])(*(computed[name] for name in call["arguments"]), *constants, output)
            wanted = expected.get(call["output"])
            computed[call["output"]] = output if wanted is None else wanted
            if wanted is None:
                continue
            if output.dtype.kind == "f":
                reals += output.size
                share = TOLERANCE + (call["of_chip"] if on_a_gpu else 0)
                allowed = share * np.abs(wanted[np.isfinite(wanted)]).max(initial=0)
                beyond += int(np.count_nonzero(~(np.abs(output - wanted) <= allowed) & (output != wanted)))
            else:
                integers += output.size
                different += int(np.count_nonzero(output != wanted))
    return {
        "what": f"{path.name}: kernel by kernel",
        "found": f"{different:,} of {integers:,} integers differ, {beyond:,} of {reals:,} floats",
        "is_right": different == beyond == 0,
    }


def _network_times(name: str, library: Any, machine: Emulator | Gpu) -> Iterator[Row]:
    for batch in BATCHES if machine.torch else (1,):
        feeds = {}
        for value in library.interface.inputs:
            shape = tuple(batch if size is None else size for size in value.shape)
            array = np.random.default_rng(0).standard_normal(shape).astype(value.dtype)
            feeds[value.name] = machine.torch.from_numpy(array).cuda() if machine.torch else library._device.put(array)
        yield _timed(f"{name}: batch {batch}", machine.run_microseconds(partial(library.run, feeds)))


def _timed(what: str, microseconds: float | None, **more: Any) -> Row:
    return {"what": what, "microseconds": microseconds, **more}


def _torch(machine: Emulator | Gpu) -> Iterator[Row]:
    """ResNet-50 in float16."""
    torch = machine.torch
    if torch is None:
        return
    model = gpu_network.torch_model(torch).half().cuda().eval().to(memory_format=torch.channels_last)
    for batch in BATCHES:
        x = torch.randn(batch, 3, gpu_network.SIZE, gpu_network.SIZE, device="cuda", dtype=torch.float16)
        x = x.to(memory_format=torch.channels_last)
        with torch.inference_mode():
            yield _timed(f"ResNet-50, torch, float16: batch {batch}", machine.microseconds(partial(model, x)))


def _onnxruntime(machine: Emulator | Gpu) -> Iterator[Row]:
    """ResNet-50 by CUDA and by TensorRT, whose runs cannot be captured: on the clock, with inputs on the GPU."""
    if machine.torch is None:
        return
    try:
        import onnxruntime as ort

        data = gpu_network.onnx_model().SerializeToString()
    except ImportError as error:
        yield {"what": "ResNet-50, ONNX Runtime", "found": f"not installed: {error}"}
        return
    import time

    for provider in ("CUDAExecutionProvider", "TensorrtExecutionProvider"):
        if provider not in ort.get_available_providers():
            yield {"what": f"ResNet-50, {provider}", "found": "not installed"}
            continue
        options = {"trt_fp16_enable": True} if provider.startswith("Tensorrt") else {}
        session = ort.InferenceSession(data, providers=[(provider, options)])
        for batch in BATCHES:
            binding = session.io_binding()
            x = np.random.default_rng(0).standard_normal((batch, 3, 224, 224)).astype(np.float32)
            binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(x, "cuda", 0))
            binding.bind_output(session.get_outputs()[0].name, "cuda")
            times = []
            for _ in range(ROUNDS):
                start = time.perf_counter()
                session.run_with_iobinding(binding)
                times.append(1e6 * (time.perf_counter() - start))
            yield _timed(f"ResNet-50, {provider}: batch {batch}", statistics.median(times))


def _products(folder: Path, machine: Emulator | Gpu) -> Iterator[Row]:
    """Single kernels with drawn weights, against cuBLASLt by torch."""
    document = json.loads((folder / "products.json").read_text())
    lower, upper = np.random.default_rng(0).choice(PLACES, (2, document["weights_bytes"]))  # of codes, any are as good
    (lower | upper << 4).tofile(folder / "weights.bin")
    library, first, usual = machine.open(folder), 0, None
    for entry in document["products"]:
        constants = library.constants[first : first + entry["constants"]]
        first += entry["constants"]
        if entry["what"].startswith("product by m64") and not _has_warpgroups(machine):
            continue
        ends = (entry["inputs"], entry["outputs"])
        x, y = (library._device.put(np.ones((1, *shape), dtype)) for dtype, shape in ends)
        took = machine.microseconds(_launch(library, entry["kernel"], (x, *constants, y), machine))
        if "tiles" in entry:
            share = None if took is None or usual is None else took / usual
            yield _timed(f"the same, {entry['tiles']}", took, of_the_predicted_tiles=share)
        else:
            usual = took
            peer = (_cublas_float8 if entry["what"] == "FP8 product" else _cublas)(entry["sizes"][0], machine)
            share = None if took is None or peer is None else peer / took
            yield _timed(f"{KINDS[entry['what']]} {' × '.join(map(str, entry['sizes']))}", took, of_cublaslt=share)
    (folder / "weights.bin").unlink()


def _has_warpgroups(machine: Emulator | Gpu) -> bool:
    return machine.torch is None or machine.torch.cuda.get_device_capability() == WITH_WARPGROUPS


def _launch(library: Any, name: str, arguments: Any, machine: Emulator | Gpu) -> Callable[[], object]:
    function = library._module.get_function(name, query_imports=True)

    def call() -> None:
        stream = machine.torch.cuda.current_stream().cuda_stream if machine.torch else 0
        with library._device.on(stream):
            function(*arguments)

    return call


def _cublas(side: int, machine: Emulator | Gpu) -> float | None:
    if machine.torch is None:
        return None
    a, b = (machine.torch.ones(side, side, dtype=machine.torch.int8, device="cuda") for _ in range(2))
    return machine.microseconds(lambda: machine.torch._int_mm(a, b.t()))


def _cublas_float8(side: int, machine: Emulator | Gpu) -> float | None:
    """The same of FP8, where the chip multiplies it."""
    torch = machine.torch
    if torch is None or torch.cuda.get_device_capability() < (8, 9):
        return None
    a, b = (torch.ones(side, side, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device="cuda")
    return machine.microseconds(lambda: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16))


def use_libraries_of(folder: Path) -> None:
    """Import what lies in the folder, before what else there is."""
    sys.path.insert(0, str(folder / "lib"))
    os.environ["PTQC_TVM_RUNTIME"] = str(folder / "lib" / "libtvm_runtime.so")
