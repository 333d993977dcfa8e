"""What kernels for NVIDIA GPUs are written for, as the shared families ask for it; and the chips there is code for."""

from typing import Any

from ptqc.codegen.kernels.isa import Isa

# The name of the target.
TARGET = "cuda"
# One number to a thread. Nobody counts the registers of a tile of sums but nvcc, which has 255 for a thread.
BY_ELEMENT = Isa("cuda", "", (), lanes=1, registers=24, working=4, kind="cuda", owner="cuda")


def target(host: Any) -> dict[str, Any]:
    """The target as TVM takes it. host: of the functions that launch kernels."""
    return {
        "kind": "cuda",
        "arch": "sm_80",
        "max_num_threads": 1024,
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": 49152,
        "thread_warp_size": 32,
        "host": host,
    }
