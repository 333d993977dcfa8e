"""Another program under the limits of a sandboxed process: `python -m ptqc.utils.program PROGRAM ARGUMENT…`.

Where there is none it ends as shells do, see `ptqc.tools.reduce.failure`.
"""

import os
import sys

if __name__ == "__main__":
    try:
        os.execvp(sys.argv[1], sys.argv[1:])
    except OSError as failure:
        print(f"cannot run {sys.argv[1]}: {failure.strerror}", file=sys.stderr)
        sys.exit(127)
