"""What an operator is, is said in `ptqc/operators`, and nowhere else in a list of names."""

import ast
from collections.abc import Iterator
from pathlib import Path

import onnx.defs
import pytest

from ptqc.ir.operators import EVERY

ROOT = Path(__file__).resolve().parents[3]
NAMES = {schema.name for schema in onnx.defs.get_all_schemas()} | {operator.name for operator in EVERY}
FOLDERS = ("ptqc", "passes", "codegen")
# Where operators may be named in a list, and why.
ALLOWED = {
    "ptqc/ir/operators": "this is the place",
    "ptqc/execution/torch/operators": "a function of torch for each operator, which is optional and not imported there",
    "codegen/kernels": "a kernel or a function of TVM for each operator",
    "codegen/c/lowering.py": "a rule that writes calls of C for each operator",
    "codegen/c/rules": "a function of C for each operator",
    "codegen/c/timeline.py": "a function for each operator that says which rows it reads",
    "codegen/litert/operators.py": "operators of TFLite for each operator",
    "codegen/qdq/rules.py": "what runtimes demand of some",
    "codegen/program/expansion.py": "a definition by other operators, of those that have no kernel",
    "codegen/program/recurrent.py": "the same of those with states, which some targets write out",
    "codegen/onnxruntime/names.py": "a fault of ONNX Runtime 1.18 with two operators",
    "passes/canonicalize": "a rewrite names the operators of its pattern",
    "passes/equalize": "the same of those that even channels out",
    "ptqc/ir/channels.py": "a function for each operator that says where the places of channels go",
    "ptqc/ir/channel_rules.py": "the same for those that compute",
    "ptqc/ir/rotation_rules.py": "the same for those that rotations pass",
    "ptqc/ir/scale_rules.py": "the same for factors of channels",
    "ptqc/losses/trace.py": "a function for each operator that says where the channels go",
    "ptqc/calibration/synthetic.py": "the pattern of a preprocessing",
}


def listed(tree: ast.AST) -> Iterator[tuple[int, list[str]]]:
    """Line and names of every collection, match, or chain of comparisons, with names of two operators or more."""
    for node in ast.walk(tree):
        result: list[ast.expr | None] = []
        if isinstance(node, ast.Set | ast.List | ast.Tuple):
            result = [*node.elts]
        elif isinstance(node, ast.Dict):
            result = [*node.keys]
        elif isinstance(node, ast.Match):
            patterns = (pattern for case in node.cases for pattern in ast.walk(case.pattern))
            result = [pattern.value for pattern in patterns if isinstance(pattern, ast.MatchValue)]
        elif isinstance(node, ast.BoolOp):
            compared = (part for part in node.values if isinstance(part, ast.Compare))
            result = [operand for part in compared for operand in (part.left, *part.comparators)]
        names = [each.value for each in result if isinstance(each, ast.Constant) and each.value in NAMES]
        if len(names) > 1:
            yield getattr(node, "lineno", 0), names


def files() -> Iterator[Path]:
    for folder in FOLDERS:
        rooms = [path for path in (ROOT / folder).iterdir() if not path.is_symlink()]
        yield from (file for room in rooms for file in ([room] if room.suffix == ".py" else room.rglob("*.py")))


def place(file: Path) -> str | None:
    """The entry of `ALLOWED` that a file belongs to."""
    path = file.relative_to(ROOT)
    return next((str(above) for above in (path, *path.parents) if str(above) in ALLOWED), None)


def test_no_other_list_of_operators() -> None:
    result = [
        f"{file.relative_to(ROOT)}:{line}: {', '.join(names)}"
        for file in files()
        if place(file) is None
        for line, names in listed(ast.parse(file.read_text(encoding="utf-8")))
    ]
    assert result == []


@pytest.mark.parametrize("allowed", ALLOWED)
def test_every_exception_is_needed(allowed: str) -> None:
    own = [file for file in files() if place(file) == allowed]
    assert any(True for file in own for _ in listed(ast.parse(file.read_text(encoding="utf-8"))))


def test_lists_are_found() -> None:
    code = 'A = {"Conv", "Gemm"}\nB = {"Conv": 1, "x": 2}\nC = x in ("Add", "Mul")\nmatch x:\n case "Add" | "Sub": 1'
    result = [["Add", "Sub"], ["Conv", "Gemm"], ["Add", "Mul"], ["Relu", "Clip"]]
    assert sorted(names for _, names in listed(ast.parse(code + '\nx == "Relu" or x == "Clip"'))) == sorted(result)
