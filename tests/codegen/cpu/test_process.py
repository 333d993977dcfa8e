"""The process that runs TVM does not load torch, which TVM would."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
try:
    import torch
except ImportError:
    print("no torch", __name__, sys.argv[1:])
"""


def test_what_is_run_sees_no_torch(tmp_path: Path) -> None:
    (tmp_path / "asks_for_torch.py").write_text(PROGRAM)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
        "from ptqc.codegen.kernels.process import main; main(['asks_for_torch', 'a', 'b'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "no torch __main__ ['a', 'b']\n", done.stderr
