"""The documentation as a site: `python -m sphinx -W docs build/site`."""

import argparse
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

# The checkout's own ptqc, whether or not one is installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ptqc.cli.help import ABOUT, Parser, described
from ptqc.cli.parser import parsers
from ptqc.utils.version import __version__

project = "ptqc"
copyright = "the authors of ptqc"  # noqa: A001
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"ptqc {__version__}"
html_static_path: list[str] = []
myst_heading_anchors = 4
default_role = "code"
smartquotes = False  # would make dashes of `--options`, and other quotes of those in code
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
maximum_signature_line_length = 80


class CommandLine(Directive):
    """All commands with their options, from the parsers that the command line itself uses."""

    def run(self) -> list[nodes.Node]:
        """One section per command."""
        _, commands = parsers()
        return [_section(name, parser) for name, parser in commands.items()]


def _section(name: str, parser: Parser) -> nodes.section:
    section = nodes.section(ids=[f"ptqc-{name}"], names=[f"ptqc {name}"])
    section += nodes.title(text=f"ptqc {name}")
    section += nodes.paragraph("", "", *_inline(parser.description or ""))
    section += [nodes.literal_block(text=line) for line in parser.examples]
    for group, actions in parser.shown():
        section += nodes.rubric("", "", nodes.Text(group.value))
        if group in ABOUT:
            section += nodes.paragraph("", "", *_inline(ABOUT[group]))
        section += nodes.definition_list("", *map(_item, actions))
    if parser.epilog:
        section += nodes.paragraph("", "", *_inline(parser.epilog))
    return section


def _item(action: argparse.Action) -> nodes.definition_list_item:
    text = nodes.definition("", nodes.paragraph("", "", *_inline(described(action).replace("%%", "%"))))
    return nodes.definition_list_item("", nodes.term("", "", *_names(action)), text)


def _inline(text: str) -> Iterator[nodes.Node]:
    """Text in which what stands between backticks is code."""
    for place, part in enumerate(text.split("`")):
        yield nodes.literal(text=part) if place % 2 else nodes.Text(part)


def _names(action: argparse.Action) -> Iterator[nodes.Node]:
    value = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
    for place, option in enumerate(action.option_strings or [""]):
        if place:
            yield nodes.Text(", ")
        yield nodes.literal(text=f"{option} {value}".strip())


def _list_parameters(
    _app: object, _kind: str, _name: str, described: object, _options: object, lines: list[str]
) -> None:
    """Parameters and fields, which docstrings tell one after the other ("name: what it is."), as a list.

    A budget such as 2ms@cpu is no address of e-mail.
    """
    lines[:] = [line if "``" in line else re.sub(r"(?<=\w)@(?=\w)", r"\\@", line) for line in lines]
    known = _parameters(described)
    if not known:
        return
    one = "|".join(map(re.escape, known))
    begins = re.compile(rf"(?:(?<=[.;] )|^)((?:{one})(?:, (?:{one}))*): ")
    paragraphs = [" ".join(paragraph.split("\n")) for paragraph in "\n".join(lines).split("\n\n")]
    lines[:] = [line for paragraph in paragraphs for line in (*_items(paragraph, begins), "")]


def _parameters(described: object) -> list[str]:
    if is_dataclass(described):
        return [field.name for field in fields(described)]
    return list(inspect.signature(described).parameters) if inspect.isfunction(described) else []


def _items(paragraph: str, begins: re.Pattern[str]) -> Iterator[str]:
    """The paragraph where it tells of no parameter, else one item for each; "Raises …" stands behind them."""
    _, *found = begins.split(paragraph) if begins.match(paragraph) else ("",)
    if not found:
        yield paragraph
    raises = ""
    for names, told in zip(found[::2], found[1::2], strict=True):
        told, separator, raised = told.partition("Raises ")
        yield f"- **{names}**: {told.strip()}"
        raises += f"{separator}{raised}"
    if raises:
        yield from ("", raises)


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.add_directive("command-line", CommandLine)
    app.connect("autodoc-process-docstring", _list_parameters)
