"""The pictures of docs/start/tutorial.md: a terminal, drawn from its text, and the first screen of a report.

python benchmarks/tutorial_pictures.py                    draws docs/pictures/first_compile.txt as SVG
python benchmarks/tutorial_pictures.py out/report.html    and takes a picture of a report, with Chromium

The text is what the commands of the tutorial printed, but for the folder of the machine, which is left out.
"""

import argparse
import subprocess
import tempfile
from html import escape
from pathlib import Path

from harness import ROOT
from PIL import Image

PICTURES = ROOT / "docs" / "pictures"
TEXT = PICTURES / "first_compile.txt"
PAPER, INK, PROMPT, NAME = "#1e2430", "#d7dce5", "#7fd08c", "#8ab8f0"
ACROSS, DOWN, MARGIN, BAR = 7.25, 18, 16, 26
REPORT_SIZE = (1200, 860)
COLORS = 64
# Several spaces would be drawn as one.
HARD_SPACE = "\N{NO-BREAK SPACE}"


def terminal(text: str) -> str:
    """A window with this text. Lines that begin with a dollar are typed; of others, what stands first is a name."""
    lines = text.rstrip("\n").split("\n")
    wide = round(2 * MARGIN + ACROSS * max(map(len, lines)))
    tall = BAR + 2 * MARGIN + DOWN * len(lines)
    size = f'viewBox="0 0 {wide} {tall}" width="{wide}" height="{tall}"'
    style = 'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="12"'
    body = [f'<rect width="{wide}" height="{tall}" rx="8" fill="{PAPER}"/>']
    for place, color in enumerate(("#e5484d", "#e08a1e", "#3f9d63")):
        body.append(f'<circle cx="{18 + 18 * place}" cy="16" r="5.5" fill="{color}"/>')
    typed = False
    for row, line in enumerate(lines):
        typed = line.startswith("$ ") or (typed and lines[row - 1].endswith("\\"))
        name = "" if typed or line.startswith(" ") or "  " not in line else line.partition("  ")[0]
        name, others = (part.replace(" ", HARD_SPACE) for part in (name, line[len(name) :]))
        marked = f'<tspan fill="{NAME}">{escape(name)}</tspan>{escape(others)}' if name else escape(others)
        long = f' textLength="{ACROSS * len(line):.0f}" lengthAdjust="spacing"' if line else ""
        at = f'x="{MARGIN}" y="{BAR + MARGIN + DOWN * row + 8}"'
        body.append(f'<text {at} fill="{PROMPT if typed else INK}"{long}>{marked}</text>')
    inside = "\n".join(("<title>A compile in a terminal, with its summary</title>", *body))
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style} role="img">\n{inside}\n</svg>\n'


def report(page: Path, picture: Path) -> None:
    """The first screen of a report, in few colours."""
    with tempfile.TemporaryDirectory() as folder:
        taken = Path(folder) / "screen.png"
        size = f"--window-size={REPORT_SIZE[0]},{REPORT_SIZE[1]}"
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", size]
        subprocess.run([*command, f"--screenshot={taken}", page.resolve().as_uri()], check=True, capture_output=True)
        Image.open(taken).convert("RGB").quantize(COLORS).save(picture, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path, nargs="?")
    page = parser.parse_args().report
    TEXT.with_suffix(".svg").write_text(terminal(TEXT.read_text(encoding="utf-8")), encoding="utf-8")
    if page is not None:
        report(page, PICTURES / "first_report.png")


if __name__ == "__main__":
    main()
