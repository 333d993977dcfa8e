"""Another program under the limits of a sandboxed process: `python -m ptqc.reducing.program PROGRAM ARGUMENT…`."""

import os
import sys

if __name__ == "__main__":
    try:
        os.execvp(sys.argv[1], sys.argv[1:])
    except OSError as failure:
        sys.exit(f"cannot run {sys.argv[1]}: {failure.strerror}")
