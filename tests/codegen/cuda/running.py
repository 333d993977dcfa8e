"""Runs a library on the stand-ins in all ways that there are; prints what came out, as JSON.

`python running.py ARTIFACT FOLDER`: a process of its own, since stand-ins are loaded before TVM's runtime is.
"""

import ctypes
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from ptqc.codegen.cuda.emulator.opening import load_stand_ins, open_delivered
from ptqc.errors import GpuMemoryError
from ptqc.runtime.cuda_library import CudaLibrary

X = [np.random.default_rng(seed).standard_normal((2, 3, 8, 8)).astype(np.float32) for seed in range(3)]


def used() -> int:
    """Bytes of the GPU that are in use."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ctypes.CDLL("libcudart.so.13").cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
    return total.value - free.value


def result(actual: dict[str, Any]) -> np.ndarray:
    return np.asarray(next(iter(actual.values())))


class Checks:
    """plain, graphs: the library without and with CUDA graphs. wanted: what it gives for each of X."""

    def __init__(self, folder: Path, room: Path) -> None:
        self.plain = open_delivered(folder, room)
        self.opened = used()
        self.plain._device.release()
        self.released = used()
        self.graphs = CudaLibrary.open(folder, graph=True, emulated=True)
        self.wanted = [result(self.plain.run({"x": x})) for x in X]

    def is_wanted(self, result: Any, index: int) -> bool:
        return bool(np.array_equal(result, self.wanted[index]))

    def on_gpu(self, index: int) -> Any:
        return self.plain._device.put(X[index])

    def pulled(self, result: dict[str, Any]) -> np.ndarray:
        return self.plain._device.pull(next(iter(result.values())))

    def memory_of_preparing_is_given_back(self) -> bool:
        return 0 < self.opened == self.released

    def arrays_by_graphs(self) -> bool:
        actual = [self.is_wanted(result(self.graphs.run({"x": x})), index) for index, x in enumerate(X)]
        return all(actual) and len(self.graphs._machine(0)._graphs) == 1

    def batches_by_graphs(self) -> bool:
        """A larger batch moves the workspace, which captured runs have to notice."""
        large = np.concatenate(X)
        actual = [self.graphs.run({"x": x}) for x in (X[0], large, X[1][:1], X[1])]
        wanted = [self.wanted[0], np.concatenate(self.wanted), self.wanted[1][:1], self.wanted[1]]
        return all(np.array_equal(result(f), w) for f, w in zip(actual, wanted, strict=True))

    def tensors_stay_on_the_gpu(self) -> bool:
        result = self.plain.run({"x": self.on_gpu(1)})
        return not isinstance(next(iter(result.values())), np.ndarray) and self.is_wanted(self.pulled(result), 1)

    def tensors_by_graphs(self) -> bool:
        x = self.on_gpu(0)
        first = self.graphs.run({"x": x})
        place = next(iter(first.values())).data_ptr()
        one = self.is_wanted(self.pulled(first), 0)
        self.plain._device.put(X[2], x)
        second = self.graphs.run({"x": x})
        return one and self.is_wanted(self.pulled(second), 2) and next(iter(second.values())).data_ptr() == place

    def few_graphs_are_kept(self) -> bool:
        tensors = [self.on_gpu(0) for _ in range(11)]
        return all(self.is_wanted(self.pulled(self.graphs.run({"x": x})), 0) for x in tensors) and (
            len(self.graphs._machine(0)._graphs) == 8
        )

    def tensors_of_torch_run_on_its_stream(self) -> bool:
        stream = ctypes.c_void_p()
        ctypes.CDLL("libcudart.so.13").cudaStreamCreate(ctypes.byref(stream))
        sys.modules["torch"] = torch = ModuleType("torch")

        def speaks(self: Any, **how: Any) -> Any:
            return self.inside.__dlpack__(**how)

        wrapped: Any = type("Tensor", (SimpleNamespace,), {"__module__": "torch", "__dlpack__": speaks})

        def tensor(inside: Any) -> Any:
            return wrapped(__dlpack_device__=inside.__dlpack_device__, inside=inside)

        torch.from_dlpack = tensor  # type: ignore[attr-defined]
        torch.cuda = SimpleNamespace(  # type: ignore[attr-defined]
            current_stream=lambda _index: SimpleNamespace(cuda_stream=stream.value)
        )
        try:
            result = self.plain.run({"x": tensor(self.on_gpu(2))})
        finally:
            del sys.modules["torch"]
        output = next(iter(result.values()))
        is_there = stream.value in self.plain._local.machines
        return is_there and type(output) is wrapped and self.is_wanted(self.plain._device.pull(output.inside), 2)

    def an_empty_batch(self) -> bool:
        empty = self.plain._device.put(np.zeros((0, 3, 8, 8), np.float32))
        return next(iter(self.plain.run({"x": empty}).values())).shape == (0, 10)

    def threads_share_a_library(self) -> bool:
        actual: dict[tuple[int, int], bool] = {}

        def work(number: int) -> None:
            for turn in range(3):
                library = (self.plain, self.graphs)[number % 2]
                actual[number, turn] = self.is_wanted(result(library.run({"x": X[turn]})), turn)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(actual) == 12 and all(actual.values())

    def too_large_a_batch(self) -> str:
        os.environ["PTQC_EMULATED_MEMORY"] = str(used() + (1 << 20))
        try:
            self.plain.run({"x": np.zeros((5000, 3, 8, 8), np.float32)})
        except GpuMemoryError as error:
            return f"{error}" if self.is_wanted(result(self.plain.run({"x": X[0]})), 0) else "wrong afterwards"
        finally:
            del os.environ["PTQC_EMULATED_MEMORY"]
        return "not refused"


def main(artifact: Path, room: Path) -> None:
    load_stand_ins()
    checks = Checks(artifact / "cuda", room)
    ways: list[Callable[[], Any]] = [
        checks.memory_of_preparing_is_given_back,
        checks.arrays_by_graphs,
        checks.batches_by_graphs,
        checks.tensors_stay_on_the_gpu,
        checks.tensors_by_graphs,
        checks.few_graphs_are_kept,
        checks.tensors_of_torch_run_on_its_stream,
        checks.an_empty_batch,
        checks.threads_share_a_library,
        checks.too_large_a_batch,
    ]
    result = {way.__name__: way() for way in ways}
    result["wanted"] = [array.tolist() for array in checks.wanted]
    result["tvm"] = "tvm" in sys.modules
    print(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
