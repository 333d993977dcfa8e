"""HTML and SVG elements. Everything that comes from a model passes through `safe`."""

from collections.abc import Iterable, Sequence
from html import escape

from ptqc.utils.text import shorten, visible

NAME_LENGTH = 52


def safe(text: object) -> str:
    """Escaped for element content and for attributes."""
    return escape(visible(text), quote=True)


def name(text: str, limit: int = NAME_LENGTH) -> str:
    """A name from the model, shortened in the middle, in full on hover."""
    full = visible(text)
    short = shorten(full, limit)
    title = f' title="{escape(full)}"' if short != full else ""
    return f"<code{title}>{escape(short)}</code>"


# What may be wider than the page; keys scroll it, too.
SCROLL = '<div class="scroll" tabindex="0" role="group" aria-label="{}">'


def table(head: Sequence[str], rows: Iterable[str], classes: str = "") -> str:
    """A table. head: column titles, with a leading ">" for columns of numbers."""
    titles = "".join(
        f'<th scope="col" class="n">{safe(t[1:])}</th>' if t.startswith(">") else f'<th scope="col">{safe(t)}</th>'
        for t in head
    )
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'{SCROLL.format("table")}<table class="{classes}"><thead><tr>{titles}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def cell(content: str, value: float | str | None = None, bar: float | None = None) -> str:
    """A cell of ready markup. value: what the column sorts by; numbers stand at the right. bar: share behind it."""
    key = f' data-v="{safe(value)}"' if value is not None else ""
    aligned = ' class="n"' if isinstance(value, int | float) else ""
    if bar is not None and bar > 0:
        return f'<td{key} class="n bar" style="--share:{100 * min(bar, 1):.1f}%">{content}</td>'
    return f"<td{key}{aligned}>{content}</td>"


def details(summary: str, content: str) -> str:
    """Collapsed content."""
    return f"<details><summary>{safe(summary)}</summary>{content}</details>"


def swatch(kind: str) -> str:
    """A small square in the colour of a part or format."""
    return f'<span class="swatch {kind}"></span>'


def svg(width: float, height: float, alt: str, body: Iterable[str]) -> str:
    """A drawing that scales with the page."""
    shapes = "\n".join(body)
    return (
        f'{SCROLL.format("drawing")}<svg viewBox="0 0 {_at(width)} {_at(height)}" role="img" aria-label="{safe(alt)}">'
        f"\n{shapes}\n</svg></div>"
    )


def rect(x: float, y: float, width: float, height: float, kind: str, title: str = "") -> str:
    """A rectangle; the title shows on hover."""
    shape = f'<rect x="{_at(x)}" y="{_at(y)}" width="{_at(width)}" height="{_at(height)}" class="{kind}"'
    return f"{shape}><title>{safe(title)}</title></rect>" if title else f"{shape}/>"


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A line."""
    return f'<line x1="{_at(x1)}" y1="{_at(y1)}" x2="{_at(x2)}" y2="{_at(y2)}" class="{kind}"/>'


def dot(x: float, y: float, radius: float, kind: str, title: str) -> str:
    """A point; the title shows on hover."""
    return f'<circle cx="{_at(x)}" cy="{_at(y)}" r="{_at(radius)}" class="{kind}"><title>{safe(title)}</title></circle>'


def path(points: Sequence[tuple[float, float]], kind: str) -> str:
    """Straight lines from point to point; kind "zoom" is filled by the style."""
    steps = " ".join(f"{'L' if i else 'M'}{_at(x)} {_at(y)}" for i, (x, y) in enumerate(points))
    return f'<path d="{steps}" class="{kind}"/>'


def label(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> str:
    """Text in a drawing."""
    return f'<text x="{_at(x)}" y="{_at(y)}" class="{kind}" text-anchor="{anchor}">{safe(content)}</text>'


def _at(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
