"""The GPU of this machine, asked for in a process of its own: the driver stays loaded in whichever process asks it.

`python -m ptqc.runtime.cuda_device` prints what there is, as JSON. Where the system has no device of NVIDIA's, no
process is started.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from ptqc.errors import TargetError
from ptqc.runtime import cuda_driver
from ptqc.utils import sandbox

# Of NVIDIA's driver on Linux, and of Windows' on Linux in Windows.
NODES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
VERSION = Path("/sys/module/nvidia/version")
# A driver that wakes several GPUs takes seconds.
PATIENCE = 60.0
# That the driver sets aside for the memory of all GPUs; of this machine's memory it takes none for them.
ADDRESSES = 1 << 47


@dataclass(frozen=True)
class CudaDevice:
    """The first GPU, cuda:0. driver: its version. is_emulator: it is none, but the emulator; never so where `find`
    found it."""

    name: str
    capability: tuple[int, int]
    driver: str
    is_emulator: bool = False

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`. Raises KeyError, TypeError or ValueError for anything else."""
        major, minor = document["capability"]
        is_emulator = bool(document.get("is_emulator"))
        return cls(str(document["name"]), (int(major), int(minor)), str(document["driver"]), is_emulator)

    def to_json(self) -> dict[str, Any]:
        """The document for jobs and artifacts."""
        return asdict(self) | {"capability": list(self.capability)}


def find() -> CudaDevice:
    """The GPU that CUDA libraries run on here. Raises TargetError, with the reason, where there is none."""
    if not any(node.exists() for node in NODES):
        raise TargetError("this machine has no GPU of NVIDIA, or no driver for it")
    done = sandbox.run(__name__, [], PATIENCE, ADDRESSES)
    if done.problem:
        raise TargetError(f"the process that asked NVIDIA's driver {done.problem}")
    told = json.loads(done.said)
    if "refused" in told:
        raise TargetError(told["refused"])
    return CudaDevice.from_json(told)


def _asked() -> dict[str, Any]:
    """What the driver tells of the first GPU, or why it cannot be used."""
    try:
        found = cuda_driver.asked()
        cuda_driver.check(0, lambda: found)
    except TargetError as error:
        return {"refused": str(error)}
    known = VERSION.read_text().strip() if VERSION.is_file() else ""
    return CudaDevice(found.names[0], found.capabilities[0], known or ".".join(map(str, found.version))).to_json()


if __name__ == "__main__":
    print(json.dumps(_asked()))
