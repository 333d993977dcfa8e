"""Starts what runs TVM in a process of its own: `python -m ptqc.codegen.kernels.process MODULE ARGUMENT…`.

TVM would load torch where that is installed, for seconds and without need.
"""

import runpy
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> None:
    """Run a module as a program, with torch hidden from all that it imports."""
    sys.modules["torch"] = None  # type: ignore[assignment]
    sys.argv = list(arguments)
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
