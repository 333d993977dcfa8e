"""A copy of the installed ONNX Runtime that keeps to AVX2: it chooses its kernels by the processor and has no switch.

It asks the processor what it can do (CPUID) and which registers the system keeps (XGETBV). In the copy the second
question is always answered with those of SSE and AVX. For measuring on x86-64 Linux only.
"""

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

# xor ecx, ecx; xgetbv  and  xor ecx, ecx; lea eax, [rcx + 7]
ASKED, ANSWERED = bytes.fromhex("31c90f01d0"), bytes.fromhex("31c98d4107")


def copy(folder: Path) -> None:
    """Put the copy into a folder. Raises RuntimeError where the question is not found."""
    spec = find_spec("onnxruntime")
    assert spec is not None
    assert spec.origin is not None
    made = shutil.copytree(Path(spec.origin).parent, folder / "onnxruntime")
    for path in made.glob("capi/*.so*"):
        path.chmod(0o755)
        path.write_bytes(path.read_bytes().replace(ASKED, ANSWERED))
    if not any(ANSWERED in path.read_bytes() for path in made.glob("capi/*.so*")):
        raise RuntimeError("this build of ONNX Runtime asks for registers in another way")


def use(folder: Path) -> None:
    """Let this process import the copy, before it imports another one."""
    assert "onnxruntime" not in sys.modules
    sys.path.insert(0, str(folder))
