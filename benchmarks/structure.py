"""Count what the code is made of: modules, lines, imports between packages, fields of records.

python benchmarks/structure.py [CHECKOUT …]

One column for each checkout; without one, for this. Lines are those of files of the packages ptqc, passes and codegen,
without blank ones at the end. Packages are the folders of `ptqc` and the modules beside them; an arrow leads from a
package to another that one of its modules imports, wherever in the file.
"""

import argparse
import ast
import statistics
from collections.abc import Iterator
from pathlib import Path

from harness import ROOT

LARGE, SMALL, MANY_FIELDS = 600, 40, 12
LINKED = ("passes", "codegen")


def modules(checkout: Path) -> dict[str, Path]:
    """Dotted name -> file; the links inside ptqc/ are read where they lead."""
    paths = {}
    for top in ("ptqc", *LINKED):
        for path in sorted((checkout / top).rglob("*.py")):
            parts = path.relative_to(checkout).with_suffix("").parts
            if parts[:1] == ("ptqc",) and len(parts) > 2 and parts[1] in LINKED:
                continue
            parts = parts if top == "ptqc" else ("ptqc", *parts)
            paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


def imports(tree: ast.AST, names: dict[str, Path]) -> Iterator[str]:
    """Modules of the project that a module imports; of `from a import b` a.b where that is one, else a."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in names else node.module


def package(name: str) -> str:
    """The folder of ptqc that a module lies in, or the module itself."""
    return name.split(".")[1] if "." in name else "ptqc"


def fields(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every dataclass with its own fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(one) for one in node.decorator_list):
            own = [one for one in node.body if isinstance(one, ast.AnnAssign) and "ClassVar" not in ast.unparse(one)]
            yield node.name, len(own)


def counted(checkout: Path) -> dict[str, object]:
    """The figures of a checkout, by what they count."""
    names = modules(checkout)
    texts = {name: path.read_text(encoding="utf-8") for name, path in names.items()}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    lines = {name: len(text.rstrip().splitlines()) for name, text in texts.items()}
    used = {name: {one for one in imports(tree, names) if one in names} - {name} for name, tree in trees.items()}
    arrows = {(package(a), package(b)) for a, imported in used.items() for b in imported if package(a) != package(b)}
    records = sorted(((count, name) for tree in trees.values() for name, count in fields(tree)), reverse=True)
    return {
        "modules": len(names),
        f"modules under {SMALL} lines": sum(count < SMALL for count in lines.values()),
        f"modules over {LARGE} lines": ", ".join(name for name, count in lines.items() if count > LARGE) or 0,
        "median lines of a module": int(statistics.median(lines.values())),
        "lines": sum(lines.values()),
        "packages": len({package(name) for name in names}),
        "arrows between packages": len(arrows),
        "modules that ptqc.compiler imports": len(used["ptqc.compiler"]),
        f"records of more than {MANY_FIELDS} own fields": sum(count > MANY_FIELDS for count, _ in records),
        "largest record": f"{records[0][1]} ({records[0][0]})",
    }


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="*", type=Path, default=[ROOT])
    columns = [counted(checkout) for checkout in parser.parse_args().checkouts]
    width = max(map(len, columns[0]))
    for what in columns[0]:
        print(f"{what:{width}}  " + "  ".join(f"{column[what]!s:>24}" for column in columns))


if __name__ == "__main__":
    main()
