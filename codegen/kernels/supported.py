"""The operators that have kernels, told by a process of its own: looking them up loads TVM.

`python -m ptqc.codegen.kernels.supported FILE` writes their names to a file, as JSON.
"""

import json
import sys
from pathlib import Path

from ptqc.codegen.kernels.lowering import BETWEEN_CODES, KERNELS, OPERATORS


def main(path: Path) -> None:
    """Write the names."""
    path.write_text(json.dumps(sorted({*KERNELS, *BETWEEN_CODES, *OPERATORS})))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
