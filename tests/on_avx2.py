"""The tests that depend on the processor, with an ONNX Runtime that keeps to AVX2: no such processor is needed.

    python tests/on_avx2.py [arguments of pytest]

Other processes that the tests start get the same ONNX Runtime. For x86-64 Linux.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parent
sys.path.append(str(TESTS.parent / "benchmarks"))

import without_avx512  # noqa: E402

CHOSEN = ("-m", "pytest", "-m", "processor and not slow")
CHECK = "from ptqc.execution.saturation import saturates; assert saturates(), 'ONNX Runtime does not keep to AVX2'"


def main(arguments: list[str]) -> int:
    """The first exit code that is not 0."""
    with tempfile.TemporaryDirectory() as folder:
        without_avx512.copy(Path(folder))
        paths = [folder, str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        for command in (["-c", CHECK], [*CHOSEN, str(TESTS), *arguments]):
            done = subprocess.run([sys.executable, *command], env=environment, check=False)
            if done.returncode:
                return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
