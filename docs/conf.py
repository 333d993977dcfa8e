"""The documentation as a site: `python -m sphinx -W docs build/site`."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

# The checkout's own ptqc, whether or not one is installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ptqc.cli.parser import parsers
from ptqc.utils.version import __version__

project = "ptqc"
copyright = "the authors of ptqc"  # noqa: A001
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"ptqc {__version__}"
html_static_path: list[str] = []
myst_heading_anchors = 4
default_role = "code"
smartquotes = False  # would make dashes of `--options`, and other quotes of those in code
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # fields of dataclasses that are listed as members have an entry already
autodoc_member_order = "bysource"
maximum_signature_line_length = 80


class CommandLine(Directive):
    """All commands with their options, from the parsers that the command line itself uses."""

    def run(self) -> list[nodes.Node]:
        """One section per command."""
        _, commands = parsers()
        return [_section(name, parser) for name, parser in commands.items()]


def _section(name: str, parser: argparse.ArgumentParser) -> nodes.section:
    section = nodes.section(ids=[f"ptqc-{name}"], names=[f"ptqc {name}"])
    section += nodes.title(text=f"ptqc {name}")
    section += nodes.paragraph("", "", *_inline(parser.description or ""))
    listed = nodes.definition_list()
    for action in parser._actions:
        listed += _item(action)
    section += listed
    if parser.epilog:
        section += nodes.paragraph("", "", *_inline(parser.epilog))
    return section


def _item(action: argparse.Action) -> nodes.definition_list_item:
    told = nodes.definition("", nodes.paragraph("", "", *_inline((action.help or "").replace("%%", "%"))))
    return nodes.definition_list_item("", nodes.term("", "", *_names(action)), told)


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


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.add_directive("command-line", CommandLine)
