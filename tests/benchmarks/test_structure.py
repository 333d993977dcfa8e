"""Counts of what the code is made of, on a tiny checkout whose figures are known."""

from pathlib import Path

import structure

FILES = {
    "ptqc/__init__.py": "",
    "ptqc/compiler.py": "from ptqc.ir import plan\nfrom ptqc.passes.run import go\n\n\n\n",
    "ptqc/ir/__init__.py": "",
    "ptqc/ir/plan.py": "import dataclasses\n\n\n@dataclasses.dataclass\nclass Plan:\n    one: int\n    two: int = 2\n",
    "passes/__init__.py": "",
    "passes/run.py": "def go():\n    import ptqc.ir.plan\n",
    "codegen/__init__.py": "",
}


def test_counts(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "ptqc" / "passes").symlink_to(tmp_path / "passes")
    counted = structure.counted(tmp_path)
    assert counted["modules"] == 7
    assert counted["lines"] == 0 + 2 + 0 + 7 + 0 + 2 + 0
    assert counted["arrows between packages"] == 3  # compiler -> ir, compiler -> passes, passes -> ir
    assert counted["modules that ptqc.compiler imports"] == 2
    assert counted["largest record"] == "Plan (2)"
    assert counted["modules over 600 lines"] == 0
