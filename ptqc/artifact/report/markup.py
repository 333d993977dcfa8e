"""HTML and SVG elements. Everything that comes from a model passes through `safe`."""

import re
from collections.abc import Iterable, Sequence
from html import escape

from ptqc.utils.text import shorten, visible

NAME_LENGTH = 52


def safe(text: object) -> str:
    """Escaped for element content and for attributes."""
    return escape(visible(text), quote=True)


def unbroken(text: str) -> str:
    """Escaped, with no line broken between a number and its percent sign."""
    return safe(text).replace(" %", "&nbsp;%")


def name(text: str, limit: int = NAME_LENGTH) -> str:
    """A name from the model, shortened in the middle, in full on hover."""
    full = visible(text)
    short = shorten(full, limit)
    title = f' title="{escape(full)}"' if short != full else ""
    return f"<code{title}>{escape(short)}</code>"


# What may be wider than the page; keys scroll it, too.
SCROLL = '<div class="scroll" tabindex="0" role="group" aria-label="{}">'


def coded(text: str) -> str:
    """Text whose parts between backticks are code."""
    return "".join(f"<code>{part}</code>" if place % 2 else part for place, part in enumerate(safe(text).split("`")))


def table(head: Sequence[str], rows: Iterable[str], classes: str = "") -> str:
    """A table. head: column titles, with a leading ">" for columns of numbers.

    classes: "facts" has two columns; "stack" is short enough for its rows to be blocks on narrow screens.
    """
    titles = "".join(
        f'<th scope="col" class="n">{safe(t[1:])}</th>' if t.startswith(">") else f'<th scope="col">{safe(t)}</th>'
        for t in head
    )
    named = [title.removeprefix(">") for title in head]
    body = "\n".join(f"<tr>{_labelled(row, named) if 'stack' in classes else row}</tr>" for row in rows)
    return (
        f'{SCROLL.format("table")}<table class="{classes}"><thead><tr>{titles}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _labelled(row: str, titles: Sequence[str]) -> str:
    """A row whose cells say their column, for screens on which they stand below each other."""
    first, *cells = re.split(r"<(?=t[dh]\b)", row)
    parts = (f'{tag[:2]} data-label="{safe(title)}"{tag[2:]}' for tag, title in zip(cells, titles, strict=True))
    return first + "".join(f"<{part}" for part in parts)


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


# The look of the report, for light and dark, and the few lines that make tables sortable.

LIGHT = """
color-scheme:light dark;--bg:#fbfbfa;--card:#fff;--fg:#1b1e23;--soft:#646b76;--line:#e2e4e8;--tint:#eef1f5;
--accent:#1f5fbf;--warn:#8a5a00;--warnbg:#fff6df;--warnline:#e8c36a;--good:#35a184;--shade:rgba(0,0,0,.16);
--b1:#a32c4e;--b2:#d1495b;--b3:#e8743b;--b4:#e0a526;--b5:#7fae4b;--b6:#35a184;--b7:#3a86c8;--b8:#5a63c7;
--float:#9aa1ab;--palette:#a868b7;--scales:#7d8fa8;--functions:#b49a7a;--graph:#c9ced6
"""
DARK = """
--bg:#14161a;--card:#1b1e24;--fg:#e6e8eb;--soft:#98a1ad;--line:#2e333b;
--tint:#262b33;--accent:#7db0ff;--shade:rgba(0,0,0,.6);--warn:#f0cb7a;--warnbg:#2b2415;--warnline:#6b5520;--float:#79818d;--graph:#4b525d;
--scales:#66788f;--functions:#8d7759
"""
VERDICT = """
.verdict{border:1px solid var(--line);border-left:4px solid var(--good);border-radius:8px;background:var(--card);
padding:14px 18px 16px;margin:20px 0}
.verdict.look{border-left-color:var(--warnline)}
.verdict p{font-size:17px;line-height:1.5;margin:0 0 6px;max-width:80ch}
.bars .title{margin:12px 0 4px;font-size:13px;font-weight:550;color:var(--soft)}
.bars ul{list-style:none;margin:0;padding:0}
.bars li{display:grid;grid-template-columns:74px 1fr 84px;gap:10px;align-items:center;font-size:14px;line-height:1.7}
.bars .track{background:var(--tint);border-radius:3px}
.bars .fill{display:block;height:14px;border-radius:3px;min-width:2px;background:var(--float)}
.bars .fill.compiled{background:var(--accent)}.bars .value{text-align:right}
"""
STYLE = """
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
font-variant-numeric:tabular-nums}
main{max-width:1120px;margin:0 auto;padding:36px 24px 64px}
h1{font-size:26px;line-height:1.25;font-weight:650;margin:0;letter-spacing:-.01em;overflow-wrap:anywhere}
h1 code{font:inherit}
h2{font-size:18px;font-weight:650;margin:44px 0 4px;letter-spacing:-.005em}
h3{font-size:15px;font-weight:650;margin:24px 0 6px}
p{margin:6px 0 12px;max-width:78ch}
.lead,.soft,h2+p{color:var(--soft)}
.lead{margin:6px 0 0}
nav{display:flex;flex-wrap:wrap;gap:4px 18px;margin:16px 0 24px;font-size:14px}
a{color:var(--accent)}nav a{text-decoration:none}nav a:hover{text-decoration:underline}
code{font:13px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;unicode-bidi:isolate;
overflow-wrap:anywhere}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(225px,1fr));gap:1px;background:var(--card);
border:1px solid var(--line);border-radius:10px;overflow:hidden}
.cards.three{grid-template-columns:repeat(auto-fit,minmax(300px,1fr))}
.card{box-shadow:0 0 0 1px var(--line);padding:16px 18px}
.card dt{color:var(--soft);font-size:13px}
.card dd{margin:0}
.card .big{font-size:25px;font-weight:650;letter-spacing:-.015em;line-height:1.35}
.card .more{color:var(--soft);font-size:13px;line-height:1.45}
.warning{background:var(--warnbg);border:1px solid var(--warnline);border-left-width:4px;border-radius:8px;
padding:10px 14px;margin:16px 0;overflow-wrap:anywhere}
.warning b{color:var(--warn)}.warning ul{margin:4px 0 0;padding-left:20px}
.scroll:focus-visible{outline:2px solid var(--accent)}
.scroll{overflow-x:auto;margin:10px 0 14px;background:linear-gradient(to right,var(--bg) 30%,transparent) 0/40px 100%,
linear-gradient(to left,var(--bg) 30%,transparent) 100%/40px 100%,
linear-gradient(to right,var(--shade),transparent) 0/14px 100%,
linear-gradient(to left,var(--shade),transparent) 100%/14px 100%;
background-repeat:no-repeat;background-attachment:local,local,scroll,scroll}
.about{font-size:13px;font-weight:400;margin-left:10px}
.meaning{margin:8px 0;padding-left:18px;font-size:14px;color:var(--soft)}
.format,.mark{white-space:nowrap}.command span{display:inline-block;max-width:100%}
svg{display:block;width:100%;min-width:0;height:auto;overflow:visible}
svg text{font:12.5px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--fg)}
svg text.tick{fill:var(--soft);font-size:11.5px}svg text.strong{font-weight:600}
svg text.inside{fill:#fff;font-weight:600;paint-order:stroke;stroke:rgba(0,0,0,.35);stroke-width:2px}
.edge{stroke:var(--bg);stroke-width:1}.zoom{fill:var(--tint)}
.grid{stroke:var(--line)}.axis{stroke:var(--soft)}.budget{stroke:var(--soft);stroke-dasharray:4 4}
.predicted{fill:none;stroke:var(--soft);stroke-width:1.4;stroke-dasharray:5 3}
.curve{fill:none;stroke:var(--accent);stroke-width:1.8}.point{fill:var(--bg);stroke:var(--accent);stroke-width:1.8}
.here{fill:var(--b2);stroke:var(--bg);stroke-width:2}
.hatching{fill:var(--bg)}rect.hatched{fill:url(#hatch);pointer-events:none}
KINDS
.swatch{display:inline-block;width:11px;height:11px;border-radius:2.5px;margin-right:8px;vertical-align:-1px}
.swatch.hatch{background:repeating-linear-gradient(45deg,var(--soft) 0 2px,transparent 2px 4px)}
.legend{display:flex;flex-wrap:wrap;gap:4px 26px;margin:0;padding:0;list-style:none;font-size:14px}
table{border-collapse:collapse;width:100%;font-size:14px}
@media(min-width:641px){td>code{display:inline-block;min-width:200px}}
@media(min-width:641px) and (max-width:960px){thead th.n{white-space:normal}
.stack td:last-child:not(.n){min-width:220px}.stack td.bar{background:none}}
table.narrow{max-width:560px}
th,td{padding:6px 12px 6px 0;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
thead th{color:var(--soft);font-weight:550;font-size:13px;vertical-align:bottom}
th.n,td.n{text-align:right;padding:6px 8px;white-space:nowrap}
th.n+th:not(.n),td.n+td:not(.n){padding-left:14px}
tbody tr:hover{background:var(--tint)}
td.bar{background:linear-gradient(to left,var(--tint) var(--share),transparent var(--share)) no-repeat;
background-size:100% calc(100% - 6px);background-position:0 3px}
tbody tr:hover td.bar{background:none}
table.facts th{font-weight:550;color:var(--soft);white-space:nowrap;padding-right:28px}
.sortable.live thead th{cursor:pointer}.sortable.live thead th:hover{color:var(--fg)}
th[aria-sort=ascending]::after{content:" ↑"}th[aria-sort=descending]::after{content:" ↓"}
.tag{background:var(--tint);border-radius:4px;padding:1px 7px;font-size:13px;white-space:nowrap}
.samples{display:grid;grid-template-columns:repeat(auto-fill,minmax(230px,1fr));gap:14px;margin:12px 0}
figure{margin:0;border:1px solid var(--line);border-radius:8px;background:var(--card);padding:12px;font-size:13px}
.samples.wide{grid-template-columns:repeat(auto-fill,minmax(min(100%,430px),1fr))}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:8px;margin:0 0 8px}.pair svg{overflow:hidden;border-radius:4px}
.pair .who{margin:0 0 2px;font-size:13px;font-weight:550;color:var(--soft)}
.box{fill:none;stroke:#1fd0a3;stroke-width:1}.box.alone{stroke:#ff5b78;stroke-dasharray:2.5 1.5}
svg text.boxed{font-size:4px;font-weight:600;fill:#fff;paint-order:stroke;stroke:#000;stroke-width:1.1}
.tokens{overflow-wrap:anywhere;white-space:pre-wrap;margin:4px 0 8px}
mark{background:var(--warnbg);color:var(--warn);border-bottom:2px solid var(--warnline)}
figure img{display:block;max-width:100%;height:auto;margin:0 0 8px;border-radius:4px}
figcaption{color:var(--soft);margin-bottom:6px;overflow-wrap:anywhere}
figure th,figure td{font-size:13px;padding:3px 8px 3px 0;border:0}figure th{color:var(--soft);font-weight:550}
.notes{list-style:none;margin:8px 0;padding:0;font-size:14px}
.notes>li{padding:7px 0;border-bottom:1px solid var(--line)}
.step{color:var(--soft);display:inline-block;min-width:136px}
.subjects{color:var(--soft);padding-left:140px}.subjects>code{margin-right:12px}
summary{cursor:pointer;color:var(--accent);padding:4px 0}
footer{margin-top:48px;color:var(--soft);font-size:13px}
@media(max-width:640px){.subjects{padding-left:0}main{padding:20px 14px}
svg text{font-size:25px}svg text.tick{font-size:23px}svg text.over{display:none}.curve{stroke-width:4}
.scroll:has(>svg){padding-top:12px}
td>code{display:inline-block;min-width:150px}.stack td>code{min-width:0}
.facts thead,.stack thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.facts,.facts tbody,.facts tr,.facts th,.facts td{display:block;width:auto}
.stack,.stack tbody,.stack tr,.stack th,.stack td{display:block;width:auto}
table.facts tr>*,.stack tr>*,.stack tr>.n+td:not(.n){border:0;padding:2px 0;text-align:left;white-space:normal;
overflow-wrap:anywhere}
.facts tr,.stack tr{border-bottom:1px solid var(--line);padding:8px 0}
.stack td::before{content:attr(data-label) ": ";color:var(--soft)}
.stack td.bar{background:none}
.bars li{grid-template-columns:66px 1fr 76px}}
@media(max-width:480px){.pair{grid-template-columns:1fr}}
@media print{body{background:#fff}nav{display:none}.card,.warning,.verdict,figure,tr{break-inside:avoid}
h2{break-after:avoid}.scroll{overflow:visible}table,code{font-size:11px}svg{min-width:0}}
"""


# Of the verdict alone, for notebooks, whose pages have styles of their own.
CARD = f".ptqc{{{LIGHT};color:var(--fg);max-width:820px;{VERDICT}}}"
CARD += f"@media(prefers-color-scheme:dark){{.ptqc{{{DARK}}}}}"

KINDS = ("b1", "b2", "b3", "b4", "b5", "b6", "b7", "b8", "float", "palette", "scales", "functions", "graph")
STYLE = f":root{{{LIGHT}}}@media(prefers-color-scheme:dark){{:root{{{DARK}}}}}{VERDICT}{STYLE}"
STYLE = STYLE.replace("KINDS", "".join(f".{k}{{fill:var(--{k})}}.swatch.{k}{{background:var(--{k})}}" for k in KINDS))

SCRIPT = """
for (const table of document.querySelectorAll("table.sortable")) {
  table.classList.add("live");
  table.querySelectorAll("thead th").forEach((head, column) => {
    const sort = () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      table.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = row => row.cells[column].dataset.v ?? row.cells[column].textContent;
      const order = (a, b) => isNaN(a - b) || a === "" || b === "" ? a.localeCompare(b) : a - b;
      const rows = [...table.tBodies[0].rows].sort((a, b) => order(key(a), key(b)) * (down ? -1 : 1));
      table.tBodies[0].append(...rows);
    };
    head.tabIndex = 0;
    head.addEventListener("click", sort);
    head.addEventListener("keydown", event => event.key === "Enter" && sort());
  });
}
"""
