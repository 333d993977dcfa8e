"""A compile that kills itself at the n-th change of a file: `python killed.py N model.onnx out cache`.

N = 0 kills nothing and prints how many changes there were.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

# What Python reports before it asks the system for a change.
CHANGES = {"os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.truncate", "os.link", "os.symlink"}


class Killer:
    """Counts changes in the folders of the compile, and ends the process in front of the n-th one."""

    def __init__(self, number: int, folders: Sequence[str]) -> None:
        self.number, self.folders, self.seen = number, tuple(folders), 0

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        # Trees are removed by names relative to an open folder.
        relative = event in ("os.remove", "os.rmdir") and arguments[1] != -1
        if self._changes(event, arguments) and (relative or str(arguments[0]).startswith(self.folders)):
            self.seen += 1
            if self.seen == self.number:
                os.kill(os.getpid(), signal.SIGKILL)

    @staticmethod
    def _changes(event: str, arguments: tuple[object, ...]) -> bool:
        if event == "open":
            flags = arguments[2]
            return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        return event in CHANGES


def main() -> None:
    """Compile a small network under the killer."""
    number, model, output, cache = int(sys.argv[1]), *map(Path, sys.argv[2:])
    import ptqc
    from ptqc.execution import speed
    from ptqc.utils import sandbox

    sandbox.run = lambda *_given: sandbox.Ended(None, "")  # writes its files, but starts no process
    speed.SECONDS = 0.02
    samples = np.random.default_rng(7).standard_normal((8, 8)).astype(np.float32)
    killer = Killer(number, [str(output.parent), str(cache)])
    sys.addaudithook(killer)
    ptqc.compile(model, calibration=samples, output=output, cache=cache, bits=(3, 4), force=output.exists())
    print(killer.seen)


if __name__ == "__main__":
    main()
