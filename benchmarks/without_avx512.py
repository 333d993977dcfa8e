"""A copy of the installed ONNX Runtime that keeps to AVX2: it chooses its kernels by the processor and has no switch.

It asks the processor what it can do (CPUID) and which registers the system keeps (XGETBV). In the copy the second
question is always answered with those of SSE and AVX; and in place of the page of CPUID that tells of AVX-VNNI it reads
the next one, which tells of nothing that it uses. For measuring on x86-64 Linux only.
"""

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

# xor ecx, ecx; xgetbv  and  xor ecx, ecx; lea eax, [rcx + 7]
ASKED, ANSWERED = bytes.fromhex("31c90f01d0"), bytes.fromhex("31c98d4107")
# mov eax, 7; mov ecx, 1; cpuid  and  mov eax, 7; mov ecx, 2; cpuid
PAGE_ASKED, PAGE_ANSWERED = bytes.fromhex("b807000000b9010000000fa2"), bytes.fromhex("b807000000b9020000000fa2")


def copy(folder: Path) -> None:
    """Put the copy into a folder. Raises RuntimeError where the question is not found."""
    spec = find_spec("onnxruntime")
    assert spec is not None
    assert spec.origin is not None
    copied = shutil.copytree(Path(spec.origin).parent, folder / "onnxruntime")
    for path in copied.glob("capi/*.so*"):
        path.chmod(0o755)
        path.write_bytes(path.read_bytes().replace(ASKED, ANSWERED).replace(PAGE_ASKED, PAGE_ANSWERED))
    libraries = [path.read_bytes() for path in copied.glob("capi/*.so*")]
    for answer in (ANSWERED, PAGE_ANSWERED):
        if not any(answer in library for library in libraries):
            raise RuntimeError("this build of ONNX Runtime asks what the processor can do in another way")


def use(folder: Path) -> None:
    """Let this process import the copy, before it imports another one."""
    assert "onnxruntime" not in sys.modules
    sys.path.insert(0, str(folder))
