"""A pytest of its own beside this one, since a fault of the TVM compiler may end it."""

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO


@dataclass(frozen=True)
class Background:
    """The process, and where its output goes."""

    process: subprocess.Popen[bytes]
    output: IO[bytes]

    @classmethod
    def start(cls, folder: Path) -> "Background":
        """Begin the tests in a folder."""
        output = tempfile.TemporaryFile()  # noqa: SIM115
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
        return cls(subprocess.Popen(command, stdout=output, stderr=output), output)

    def wait(self) -> tuple[int, str]:
        """Its exit code and what it said."""
        code = self.process.wait()
        self.output.seek(0)
        return code, self.output.read().decode(errors="replace")

    def end(self) -> None:
        """Stop it, where it is not done."""
        self.process.kill()
        self.process.wait()
        self.output.close()
