"""What a user can choose about CUDA libraries."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from ptqc.errors import UsageError
from ptqc.utils.arguments import one_of, shown

Gpu = Literal["sm_80", "sm_86", "sm_89", "sm_90a"]
ALL = ",".join(get_args(Gpu))
# How kernels get their tiles, where no folder says it.
GpuTuning = Literal["auto", "off", "quick"]
AUTO, OFF, QUICK = get_args(GpuTuning)


@dataclass(frozen=True)
class CudaOptions:
    """Options of the target "cuda".

    Args:
        gpu: Architectures that get machine code, separated by commas. On
            other chips from compute capability 8.0 on, the driver translates
            the PTX beside it.
        tune: "quick" times some tiles of each layer on this machine's GPU and
            takes the fastest; "auto" does so only if `gpu` is this GPU's
            architecture; "off" takes those that are predicted to be fastest; a
            folder or file: those that an earlier compile recorded.
    """

    gpu: str = field(
        default=ALL,
        metadata={
            "metavar": "ARCH,…",
            "help": "chips that get machine code: sm_80 (A100), sm_86 (RTX 30), sm_89 (L4, RTX 40), sm_90a (H100); "
            "on others from compute capability 8.0 on, the driver translates the PTX",
            "default_text": "all",
            "values": lambda: get_args(Gpu),
        },
    )

    tune: str | Path = field(
        default=AUTO,
        metadata={
            "metavar": "HOW",
            "help": "auto: time some tiles of each layer on this machine's GPU where --gpu names its "
            "architecture alone; quick: in any case; off: never; DIR or FILE: reuse the times that an earlier compile "
            "recorded there",  # shown where no target before this one has the option
            "default_text": AUTO,
        },
    )

    def __post_init__(self) -> None:
        if not isinstance(self.gpu, str):
            raise UsageError(f"gpu is {shown(self.gpu)}; give names of architectures, separated by commas")
        for name in self.gpu.split(","):
            one_of("gpu", name, get_args(Gpu))
        if not isinstance(self.tune, str | Path) or not str(self.tune):
            raise UsageError(f"tune is {self.tune!r}; give auto, off, quick, or a folder that a tuned compile wrote")

    @property
    def gpus(self) -> tuple[str, ...]:
        """The architectures in ascending order, each once."""
        return tuple(name for name in get_args(Gpu) if name in self.gpu.split(","))


OPTIONS = CudaOptions
