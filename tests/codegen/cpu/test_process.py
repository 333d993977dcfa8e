"""The process that runs TVM does not load torch, which TVM would."""

import json
import subprocess
import sys
from pathlib import Path

from ptqc.codegen.kernels.process import REPORT

PROGRAM = """
def first():
    print("first")

def ask(folder):
    try:
        import torch
    except ImportError:
        return {"torch": False, "folder": folder.name}
"""


def test_what_is_run_sees_no_torch(tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text(PROGRAM)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
        f"from ptqc.codegen.kernels.process import main; main(['asks:first', 'asks:ask', {str(tmp_path)!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "first\n", done.stderr
    assert json.loads((tmp_path / REPORT).read_text()) == {"torch": False, "folder": tmp_path.name}
