"""Names and numbers as people read them; names come from models and may hold anything."""

import math
from collections.abc import Mapping, Sequence

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def visible(text: object) -> str:
    """The text on one line; what does not print or reorders text (control, bidi, surrogates) is shown as \\uXXXX."""
    result = str(text)
    if result.isprintable():
        return result
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in result)


def printable(text: object) -> str:
    """The same of a text of several lines, which stay."""
    return "\n".join(map(visible, str(text).split("\n")))


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters, cut in the middle: names differ most at their ends."""
    if len(text) <= limit:
        return text
    head = (limit - 1) // 3
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"


def number(value: float) -> str:
    """Three significant digits: 0, 0.00202, 41.3, 12,345, 3.75×10⁻⁵."""
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e6:
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    if not math.isfinite(value):
        return str(value)
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa}×10{str(int(exponent)).translate(SUPERSCRIPTS)}"


def power(value: float) -> str:
    """A value above 0 with one digit and a power of ten: 10⁻⁴, 5×10⁻³."""
    mantissa, exponent = f"{value:.0e}".split("e")
    ten = f"10{str(int(exponent)).translate(SUPERSCRIPTS)}"
    return ten if mantissa == "1" else f"{mantissa}×{ten}"


def percent(share: float) -> str:
    """A share as percent, with more digits where it is small."""
    value = 100 * share
    if 0 < abs(value) < 0.01:
        return "< 0.01 %" if value > 0 else "> −0.01 %"
    digits = 2 if abs(value) < 10 else 1
    return f"{value:.{digits}f} %"


def facts(document: Mapping[str, object]) -> list[tuple[str, str]]:
    """Names and values of a document's numbers and texts; what holds others is left out."""
    result = [(name, _fact(value)) for name, value in document.items()]
    return [(name.replace("_", " "), value) for name, value in result if value is not None]


def _fact(value: object) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return number(value)
    return str(value) if isinstance(value, bool | str) else None


def differences_end_to_end(different: int, rounded: int | None) -> str:
    """Say how many integers of a library differ end to end, and of how many roundings they are the consequence.

    rounded: integers that float parts round otherwise, given ONNX Runtime's integers; None where it was not measured.
    """
    if not different:
        return "none differs end to end"
    cause = "float parts that are rounded" if rounded is None else f"{rounded:,} roundings of float parts"
    return f"{different:,} differ end to end, all after {cause}"


def magnitude(count: float) -> str:
    """A count with an SI prefix, for a unit to follow: "2.36 M", "640 "."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= 0.9995 * factor:  # which is rounded to 1, as 999.5 would be to 1e+03
            return f"{count / factor:.3g} {prefix}"
    return f"{count:.3g} "


def decibels(error: float) -> str:
    """A relative squared error as a signal to noise ratio: −10 log10(error)."""
    return f"{0.0 - 10 * math.log10(error):.1f} dB" if error > 0 else "exact"


def entries(settings: Mapping[str, str]) -> str:
    """Settings as they are written down: "a=1, b=2"."""
    return ", ".join(f"{name}={value}" for name, value in sorted(settings.items()))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns under their headings; all but the first two are numbers, on the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for row in (head, *rows):
        cells = [cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
