"""What help says: common options for -h, all in titled groups for --help; and errors in the voice of all others.

An option is declared with `Parser.add`. Its default and its possible values follow its description in the same form
everywhere; possible values are functions, since most come from modules that the command line does not wait for.
"""

import argparse
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn

from ptqc.codegen.targets import DESCRIBED
from ptqc.errors import UsageError

WIDEST = 110  # columns of a line of help, where the terminal has as many
INDENT, OPTIONS = 2, 26  # columns before a name, and before its description


class HelpGroup(StrEnum):
    """Titles of options, in the order in which help shows them."""

    ARGUMENTS = "arguments"
    LIMITS = "limits"
    DATA = "data"
    IMAGES = "images"
    TEXTS = "texts"
    DETECTORS = "detectors"
    TARGETS = "targets"
    QUANTIZATION = "quantization"
    RUNNING = "running"
    OUTPUT = "output"


ABOUT = {
    HelpGroup.IMAGES: "how image files become inputs: a pixel p becomes (p / scale - mean) / std",
    HelpGroup.TEXTS: "samples from a text file, or from a folder of .txt files",
    HelpGroup.DETECTORS: "how a detector writes the boxes that it finds, if its output names do not say so",
    HelpGroup.TARGETS: "libraries and models to build beside the ONNX file, and where the file runs",
    HelpGroup.QUANTIZATION: "formats of weights and activations, and how they are chosen",
}
# Of these, the first option stands for all where help is short.
DETAILED = (HelpGroup.IMAGES, HelpGroup.TEXTS, HelpGroup.DETECTORS)
# What argparse says, and how ptqc says it.
PLAIN = (
    (r"the following arguments are required: (.*)", r"missing: \1"),
    (r"unrecognized arguments: (.*)", r"unexpected \1"),
    (r"argument (\S+): expected .*", r"\1 needs a value"),
    (r"argument (\S+): ignored explicit argument (.*)", r"\1 takes no value, and \2 was given"),
    (r"argument \S+: (unknown .*)", r"\1"),
    (r"argument (\S+): (.*)", r"\1: \2"),
)


@dataclass(frozen=True)
class Described:
    """What help says of an option beside its description."""

    default_text: str = ""
    values: Callable[[], Iterable[str]] = tuple


class Parser(argparse.ArgumentParser):
    """A command: its options in groups, its errors in one line.

    common: the options that -h shows, if it shows fewer than --help. examples: lines of a shell.
    """

    lists = "options"

    def __init__(self, *, common: Sequence[str] = (), examples: Sequence[str] = (), **words: Any) -> None:
        super().__init__(add_help=False, allow_abbrev=False, formatter_class=_Formatter, **words)
        self.common, self.examples = common, examples
        self.by_title = {group: self.add_argument_group(group.value, ABOUT.get(group)) for group in HelpGroup}

    def add(
        self,
        group: HelpGroup,
        *names: str,
        default_text: str = "",
        values: Callable[[], Iterable[str]] = tuple,
        **words: Any,
    ) -> None:
        """Add an option, or an argument. default_text, values: see `Described`."""
        if isinstance(words.get("help"), str):
            words["help"] = words["help"].replace("%", "%%")
        action = self.by_title[group].add_argument(*names, **words)
        vars(action)["described"] = Described(default_text, values)

    def add_of_target(self, name: str, metadata: Mapping[str, Any]) -> None:
        """Add an option as a target declares it: what argparse takes, and what `Described` has."""
        words = dict(metadata)
        more = Described(**{key: words.pop(key) for key in DESCRIBED if key in words})
        vars(self.by_title[HelpGroup.TARGETS].add_argument(name, **words))["described"] = more

    def add_help_options(self) -> None:
        """Add -h and --help: one option where they would show the same."""
        shown = {action for _, actions in self.shown(is_short=True) for action in actions}
        if all(action in shown for _, actions in self.shown() for action in actions):
            self.add(HelpGroup.OUTPUT, "-h", "--help", dest="help", action=_Help, help="show this help")
            return
        self.add(
            HelpGroup.OUTPUT, "-h", dest="help", action=_Help, is_short=True, help="show the options that are used most"
        )
        self.add(HelpGroup.OUTPUT, "--help", dest="help", action=_Help, help="show all options")

    def shown(self, *, is_short: bool = False) -> Iterator[tuple[HelpGroup, list[argparse.Action]]]:
        """The options of each group that has any: all, or the common ones."""
        for group, titled in self.by_title.items():
            actions = titled._group_actions  # argparse has no public list of them
            if is_short and self.common:
                actions = [one for one in actions if {one.dest, *one.option_strings} & {*self.common, "-h", "--help"}]
            elif is_short and group in DETAILED:
                actions = actions[:1]
            if actions:
                yield group, actions

    def format_help(self) -> str:
        """All options."""
        return self.help_text()

    def help_text(self, *, is_short: bool = False) -> str:
        """All options in their groups, or the common ones in one list."""
        formatter = self._get_formatter()
        formatter.add_usage(self.usage_line, [], [])
        formatter.add_text(self.description)
        shown = list(self.shown(is_short=is_short))
        if is_short:
            actions = [action for _, actions in shown for action in actions]
            places = {name: place for place, name in enumerate(self.common)}
            if self.common:
                actions.sort(key=lambda one: min(places.get(n, len(places)) for n in (one.dest, *one.option_strings)))
            formatter.start_section("options")
            formatter.add_arguments(actions)
            formatter.end_section()
        else:
            for group, actions in shown:
                formatter.start_section(group.value)
                formatter.add_text(ABOUT.get(group))
                formatter.add_arguments(actions)
                formatter.end_section()
        formatter.add_text(self.epilog)
        if self.examples:
            formatter.add_text("\n".join(["examples:", *(f"  {line}" for line in self.examples)]))
        if is_short and sum(len(actions) for _, actions in self.shown()) > sum(len(one) for _, one in shown):
            formatter.add_text(f"`{self.prog} --help` shows all options; `ptqc help` lists topics such as budgets.")
        return formatter.format_help()

    @property
    def usage_line(self) -> str:
        """What has to be given, and that there is more."""
        needed = [one for one in self._actions if not one.option_strings or one.required]
        return self.usage or " ".join([self.prog, *(_stated(one) for one in needed), "[options]"])

    def error(self, message: str) -> NoReturn:
        """Raises UsageError."""
        if re.match(r"unrecognized arguments: -?\.?\d", message):  # as in --mean 0.5 0.5 0.5
            message += "; several numbers of one option stand together, with commas"
        for pattern, plain in PLAIN:
            if re.fullmatch(pattern, message):
                message = re.sub(pattern, plain, message)
                break
        advice = "" if "; known: " in message else f"; `{self.prog} --help` lists the {self.lists}"
        raise UsageError(f"{message}{advice}")


def _stated(action: argparse.Action) -> str:
    """An argument, or an option with its value, as usage shows them."""
    if not action.option_strings:
        name = value_of(action)
        return {"+": f"{name}…", "?": f"[{name}]"}.get(str(action.nargs), name)
    return f"{action.option_strings[0]} {value_of(action)}"


class _Help(argparse.Action):
    """Prints help and ends."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, is_short: bool = False, help: str) -> None:  # noqa: A002
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)
        self.is_short = is_short

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,  # noqa: ARG002
        values: Any,  # noqa: ARG002
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        assert isinstance(parser, Parser)
        print(parser.help_text(is_short=self.is_short), end="")
        parser.exit()


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, INDENT, OPTIONS, min(shutil.get_terminal_size().columns - 2, WIDEST))

    def _get_help_string(self, action: argparse.Action) -> str:
        return described(action)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        return invocation(action)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Keep lines that are laid out already."""
        if "\n" in text:
            return textwrap.indent(text, indent)
        return super()._fill_text(text, width, indent)


def invocation(action: argparse.Action) -> str:
    """An option by all its names, with its value."""
    return f"{', '.join(action.option_strings)} {value_of(action)}".strip()


def value_of(action: argparse.Action) -> str:
    """What stands for the value of an option, or for an argument; nothing for a switch."""
    return "" if action.nargs == 0 else str(action.metavar or action.dest.upper())


def described(action: argparse.Action) -> str:
    """The description of an option with its default and its possible values, escaped as argparse takes it."""
    more: Described = vars(action).get("described", Described())
    parts = [action.help or ""]
    if more.default_text:
        parts.append(f"(default: {more.default_text})".replace("%", "%%"))
    if values := possible_values_of(action):
        parts.append(f"(possible values: {', '.join(values)})".replace("%", "%%"))
    return " ".join(parts)


def possible_values_of(action: argparse.Action) -> list[str]:
    """The names that an option takes, if it takes nothing else."""
    more: Described = vars(action).get("described", Described())
    return list(more.values())


def whole(text: str) -> int:
    """Read a whole number, for argparse."""
    try:
        return int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from error


def real(text: str) -> float:
    """Read a number, for argparse."""
    try:
        return float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from error
