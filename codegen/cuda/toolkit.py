"""NVIDIA's compilers, which need neither a GPU nor a driver: CUDA C++ to PTX, that to machine code, all in one file."""

import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ptqc.codegen.cuda.machine_code import KernelCode, kernel_codes
from ptqc.errors import TargetError

# Whose PTX the drivers know that the libraries ask for.
OLDEST = 13
INSTALL = "pip install 'ptqc[cuda]'"
# The architecture of the PTX that machine code is made of: what the kernels' instructions need. Source that asks for
# others, by these words, has other instructions for them, and becomes PTX for them as well; what TVM puts in front asks
# for none of them. PTX for 90a runs on no other chip.
VIRTUAL = "80"
ASKED = {"89": "__CUDA_ARCH__ >= 890", "90a": "__CUDA_ARCH_FEAT_SM90_ALL"}
# TVM's own flags would allow fast mathematics; the integers of the file need every operation rounded as it stands.
EXACT = ("-std=c++17", "-O3", "-fmad=false", "-prec-div=true", "-prec-sqrt=true", "-ftz=false", "-w")
# The assembler, too, would contract what says nothing of its rounding.
ASSEMBLED = ("-O3", "-v", "-fmad=false")


@dataclass(frozen=True)
class Image:
    """Compiled kernels. path: of machine code for several chips, with the PTX it was made of. ptx: for all
    architectures, one behind the other. codes: by chip and name of the kernel's function."""

    path: Path
    ptx: str
    codes: dict[str, dict[str, KernelCode]]


@dataclass(frozen=True)
class Toolkit:
    """The compilers in a folder."""

    folder: Path

    @classmethod
    def find(cls) -> "Toolkit | None":
        """Those that pip installed, or those on the path."""
        spec = find_spec("nvidia")
        installed = [Path(room) / "cu13" / "bin" for room in (spec and spec.submodule_search_locations) or ()]
        on_path = shutil.which("nvcc")
        results = [*installed, *([Path(on_path).resolve().parent] if on_path else [])]
        return next((cls(folder) for folder in results if (folder / "nvcc").is_file()), None)

    @classmethod
    def require(cls) -> "Toolkit":
        """Raises TargetError where there is none, or an older one."""
        result = cls.find()
        if result is None:
            raise TargetError(f"the cuda target needs NVIDIA's compiler nvcc {OLDEST}, which is not here: {INSTALL}")
        if int(result.version.partition(".")[0]) < OLDEST:
            raise TargetError(
                f"the cuda target needs nvcc {OLDEST}, and {result.folder} has {result.version}: {INSTALL}"
            )
        return result

    @property
    def version(self) -> str:
        """As nvcc tells it."""
        message = self._run("nvcc", "--version")
        result = re.search(r"V(\d[\d.]*)", message)
        if result is None:
            raise TargetError(f"{self.folder / 'nvcc'} does not report its version, but {message[:200]!r}: {INSTALL}")
        return result[1]

    def compile(self, source: str, gpus: Sequence[str], folder: Path, name: str) -> Image:
        """Compile CUDA C++ for several chips. folder: for all files, which begin with the name."""
        text, image = (folder / f"{name}.{ending}" for ending in ("cu", "fatbin"))
        text.write_text(source, encoding="utf-8")
        outputs = {architecture: folder / f"{name}.{architecture}.ptx" for architecture in architectures(source, gpus)}
        for architecture, ptx in outputs.items():
            self._run("nvcc", *EXACT, "-ptx", f"-arch=compute_{architecture}", str(text), "-o", str(ptx))
        codes: dict[str, dict[str, KernelCode]] = {}
        lasting = {architecture: ptx for architecture, ptx in outputs.items() if architecture.isdecimal()}
        parts = [f"--image3=kind=ptx,sm={architecture},file={ptx}" for architecture, ptx in lasting.items()]
        for gpu in gpus:
            code, number = folder / f"{name}.{gpu}.cubin", gpu.removeprefix("sm_")
            ptx = outputs[architecture_for(gpu, outputs)]
            message = self._run("ptxas", *ASSEMBLED, f"-arch={gpu}", str(ptx), "-o", str(code))
            codes[gpu] = kernel_codes(message, code)
            parts.append(f"--image3=kind=elf,sm={number},file={code}")
        self._run("fatbinary", f"--create={image}", "-64", *parts)
        return Image(image, "".join(ptx.read_text(encoding="utf-8") for ptx in outputs.values()), codes)

    def _run(self, program: str, *arguments: str) -> str:
        command = [str(self.folder / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise TargetError(f"{program} failed: {(done.stderr or done.stdout)[:2000]}; leave the cuda target out")
        return done.stdout + done.stderr


def architecture_for(gpu: str, output: Iterable[str]) -> str:
    """Which PTX is for a chip: its own, or the newest that it takes."""
    number = gpu.removeprefix("sm_")
    if number in output:
        return number
    return max((each for each in output if each.isdecimal() and int(each) <= int(number.rstrip("a"))), key=int)


def architectures(source: str, gpus: Sequence[str]) -> tuple[str, ...]:
    """Of the PTX that CUDA C++ becomes, in ascending order. Of 90a only where machine code is made for it."""
    requested = (each for each, words in ASKED.items() if words in source)
    return (VIRTUAL, *(each for each in requested if each.isdecimal() or f"sm_{each}" in gpus))
