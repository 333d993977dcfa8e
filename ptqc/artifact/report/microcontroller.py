"""What the C source for microcontrollers takes: memory as a picture, and runs on emulated boards."""

from collections.abc import Iterator

from ptqc.artifact.report.markup import cell, label, rect, safe, svg, table
from ptqc.artifact.report.rows import Document
from ptqc.utils.text import shorten

WIDTH, HEIGHT, LEFT, MARGIN = 1040.0, 240.0, 70.0, 20.0
# Of letters that a rectangle needs to be named.
LETTER = 7.0


def arena_picture(document: Document) -> str:
    """Buffers of the arena: steps from left to right, bytes from top to bottom."""
    total, steps = max(document["arena_bytes"], 1), document["steps"]
    if not document["arena"]:
        return ""
    slot = (WIDTH - LEFT) / steps
    body = [label(LEFT - 8, MARGIN + 4, "0", "tick", "end")]
    body.append(label(LEFT - 8, MARGIN + HEIGHT, f"{total:,} B", "tick", "end"))
    for what, place, size, first, last in document["arena"]:
        x, y = LEFT + first * slot, MARGIN + place / total * HEIGHT
        width, height = (last - first + 1) * slot - 1, size / total * HEIGHT
        is_scratch = what.startswith("unpacked by")
        shown = f"{what}: {size:,} bytes at {place:,}, steps {first + 1} to {last + 1}"
        body.append(rect(x, y, width, height, "b2" if is_scratch else "b6", shown))
        letters = int(width / LETTER)
        if letters > 3 and height > 12 and not is_scratch:
            body.append(label(x + 4, y + 12, shorten(what, letters), "tick"))
    body.append(label(LEFT, MARGIN + HEIGHT + 14, "1", "tick"))
    body.append(label(WIDTH, MARGIN + HEIGHT + 14, str(steps), "tick", "end"))
    lead = "<p>Memory of a run, step by step: values, and what layers unpack of their weights meanwhile.</p>"
    return lead + svg(WIDTH, HEIGHT + 2 * MARGIN, "memory of the arena by step", body)


def board_table(document: Document) -> str:
    """Runs on emulated boards."""
    boards = document.get("boards", {})
    if "missing" in boards:
        return f"<p>Not run on an emulated board: {safe(boards['missing'])}</p>"
    head = [
        "emulated core",
        ">instructions",
        ">code, bytes",
        ">constants, bytes",
        ">C libraries, bytes",
        ">stack, bytes",
    ]
    return table(head, map("".join, _rows(boards)))


def _rows(boards: Document) -> Iterator[list[str]]:
    for core, run in boards.items():
        if "missing" in run:
            yield [cell(safe(core)), f'<td colspan="5">{safe(run["missing"])}</td>']
            continue
        parts = ("instructions", "code_bytes", "constant_bytes", "library_bytes", "stack_bytes")
        numbers = (run.get(each, 0) for each in parts)  # earlier versions counted libraries as code
        yield [cell(safe(core)), *(cell(f"{each:,}", each) for each in numbers)]
