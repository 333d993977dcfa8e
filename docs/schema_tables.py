"""The tables of docs/reference/manifest.md and json.md, written from the JSON Schemas beside them.

python docs/schema_tables.py            writes them anew, between their marks
python docs/schema_tables.py --check    names the pages that differ, and ends with 1
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

REFERENCE = Path(__file__).resolve().parent / "reference"
PAGES = tuple(REFERENCE / f"{name}.md" for name in ("manifest", "json"))
MARKED = re.compile(r"(<!-- schema: ([\w-]+)(?: (\w+))? -->\n)(.*?)(<!-- end of schema -->)", re.DOTALL)
# Keys that every document begins with, which json.md explains once.
HEAD = ("schema", "command")

Schema = Mapping[str, Any]


def schema(name: str) -> Schema:
    """A schema by the name of its file."""
    found: Schema = json.loads((REFERENCE / "schemas" / f"{name}.schema.json").read_text(encoding="utf-8"))
    return found


def table(name: str, key: str | None) -> str:
    """All keys of a schema, or of one object in it."""
    top = schema(name)
    parts = [top["properties"][key]] if key else top.get("oneOf", [top])
    rows = [row for part in parts for row in rows_of(part, "")]
    return "\n".join(["| key | type | meaning |", "|---|---|---|", *dict.fromkeys(rows)]) + "\n"


def rows_of(part: Schema, before: str) -> Iterator[str]:
    """A row for each key, and behind it those of the objects in it."""
    inside = object_in(part)
    for key, value in inside.get("properties", {}).items():
        if not before and key in HEAD:
            continue
        name = f"{before}{key}{'[]' if kinds(value) == ['array'] and object_in(value) else ''}"
        optional = "" if key in inside.get("required", [key]) else "; may be absent"
        meaning = value["description"].replace("|", "\\|")
        yield f"| `{name}` | {kind_of(value)} | {meaning}{optional} |"
        yield from rows_of(value, f"{name}.")


def object_in(part: Schema) -> Schema:
    """The object that a value is or has as its items, or nothing."""
    for one in (part, part.get("items", {}), part.get("additionalProperties") or {}):
        if "properties" in one:
            return dict(one)
    return {}


def kinds(part: Schema) -> list[str]:
    """The JSON types of a value but null."""
    given = part.get("type", [])
    return [kind for kind in ([given] if isinstance(given, str) else given) if kind != "null"]


def kind_of(part: Schema) -> str:
    """The type of a value, in words."""
    if "$ref" in part:
        return "object"
    if "const" in part:
        return str(part["const"])
    names = " or ".join(kinds(part)) or "any"
    if names == "array" and kinds(part["items"] if isinstance(part.get("items"), dict) else {}):
        names = f"array of {'/'.join(kinds(part['items']))}s"
    if isinstance(inner := part.get("additionalProperties"), dict) and kinds(inner):
        names = f"object: name to {'/'.join(kinds(inner))}"
    return f"{names} or null" if "null" in part.get("type", []) else names


def written(page: Path) -> str:
    """The page with its tables as the schemas have them."""

    def filled(match: re.Match[str]) -> str:
        return f"{match[1]}{table(match[2], match[3])}{match[5]}"

    return MARKED.sub(filled, page.read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    differs = [page for page in PAGES if written(page) != page.read_text(encoding="utf-8")]
    if check and differs:
        sys.exit(f"not as their schemas say: {', '.join(page.name for page in differs)}")
    for page in differs:
        page.write_text(written(page), encoding="utf-8")


if __name__ == "__main__":
    main()
