"""What a user can choose about CUDA libraries."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from ptqc.arguments import one_of, shown
from ptqc.errors import UsageError

Gpu = Literal["sm_80", "sm_86", "sm_89", "sm_90a"]
ALL = ",".join(get_args(Gpu))


@dataclass(frozen=True)
class CudaOptions:
    """Options of the target cuda.

    gpu: the architectures of the machine code in the library, separated by commas. Later and other chips from compute
    capability 8.0 on run it too: the driver translates the PTX that lies beside.
    """

    gpu: str = field(
        default=ALL,
        metadata={
            "metavar": "ARCH",
            "help": "chips that get machine code: sm_80 (A100), sm_86 (RTX 30), sm_89 (L4, RTX 40), sm_90a (H100); "
            "several, separated by commas; default: all. On other chips from 8.0 on, the driver translates the PTX",
        },
    )

    def __post_init__(self) -> None:
        if not isinstance(self.gpu, str):
            raise UsageError(f"gpu is {shown(self.gpu)}; give names of architectures, separated by commas")
        for name in self.gpu.split(","):
            one_of("gpu", name, get_args(Gpu))

    @property
    def gpus(self) -> tuple[str, ...]:
        """The architectures in ascending order, each once."""
        return tuple(name for name in get_args(Gpu) if name in self.gpu.split(","))


OPTIONS = CudaOptions
