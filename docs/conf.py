"""The documentation as a site: `python -m sphinx -W docs build/site`."""

import argparse
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

# The checkout's own ptqc, whether or not one is installed, and extensions of this site.
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ptqc.cli.help import ABOUT, Parser, described, value_of
from ptqc.cli.parser import parsers
from ptqc.utils.version import __version__

ROOT = Path(__file__).resolve().parent.parent
project = "ptqc"
copyright = "the authors of ptqc"  # noqa: A001
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "outside"]
# Buttons that copy a block; without the package the site has all else.
if find_spec("sphinx_copybutton"):
    extensions.append("sphinx_copybutton")
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
html_theme = "furo"
html_title = f"ptqc {__version__}"
html_static_path = ["_static"]
html_css_files, html_js_files = ["site.css"], ["site.js"]
html_logo = html_favicon = "_static/logo.svg"
html_theme_options: dict[str, object] = {"navigation_with_keys": True}
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
# Until the repository has a public address, pyproject.toml holds one of the names that lead nowhere (RFC 2606).
if not (urlsplit(REPOSITORY).hostname or "").endswith(".example"):
    html_theme_options |= {"source_repository": REPOSITORY, "source_branch": "main", "source_directory": "docs/"}
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]
# Browsers draw MathML themselves, so no page needs a script from another host.
html_math_renderer = "mathml"
# Most blocks are commands with their output, which are no Python.
highlight_language = "text"
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


def _section(name: str, parser: Parser) -> nodes.section:
    section = nodes.section(ids=[f"ptqc-{name}"], names=[f"ptqc {name}"])
    section += nodes.title(text=f"ptqc {name}")
    section += nodes.paragraph("", "", *_inline(parser.description or ""))
    for lines in ([parser.usage_line], parser.examples):
        if text := "\n".join(lines):
            section += nodes.literal_block(text, text, language="text")
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


# An option of the command line, which stays on one line.
OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z0-9-]*)")


def _inline(text: str) -> Iterator[nodes.Node]:
    """Text in which what stands between backticks is code, and so is every option."""
    for place, part in enumerate(text.split("`")):
        if place % 2:
            yield nodes.literal(text=part)
            continue
        for number, words in enumerate(OPTION.split(part)):
            yield nodes.literal(text=words) if number % 2 else nodes.Text(words)


def _names(action: argparse.Action) -> Iterator[nodes.Node]:
    value = value_of(action)
    for place, option in enumerate(action.option_strings or [""]):
        if place:
            yield nodes.Text(", ")
        yield nodes.literal(text=f"{option} {value}".strip())


def _math(translator: nodes.NodeVisitor, node: nodes.math, as_block: bool) -> None:
    translator.body.append(tex2mathml(node.astext(), as_block=as_block))
    raise nodes.SkipNode


def _renderer(as_block: bool) -> tuple[Callable[..., None], None]:
    return partial(_math, as_block=as_block), None


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.add_directive("command-line", CommandLine)
    app.add_html_math_renderer("mathml", _renderer(False), _renderer(True))
