"""Options that a project keeps in a file: `ptqc.toml`, or `[tool.ptqc]` of `pyproject.toml`.

Tables are named like commands, and their keys like options; keys outside of a table hold for every command that has
such an option. What the command line says comes first.
"""

import argparse
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptqc.errors import UNREADABLE, UsageError
from ptqc.utils.arguments import shown, unknown

FILE, PROJECT = "ptqc.toml", "pyproject.toml"
# What help calls an option's value where that is a path, and where it is one only if that exists.
PATHS, DATA = ("DIR", "FILE"), ("DATA", "NAME|FILE")
NOT_KEPT = ("help", "json", "version")

Commands = Mapping[str, argparse.ArgumentParser]


class Each(argparse.Action):
    """An option that may be given several times; the first one on the command line replaces what a file said."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, [values] if before is self.default else [*before, values])


@dataclass(frozen=True)
class Configuration:
    """Options by command, and those of every command, as they stand in the file `path`."""

    path: Path
    shared: Mapping[str, Any]
    by_command: Mapping[str, Mapping[str, Any]]

    @classmethod
    def find(cls, folder: Path, commands: Commands) -> "Configuration | None":
        """Of the nearest file in this folder or above it; None where there is none.

        Raises UsageError for a file that cannot be read, and for tables and options that ptqc does not have.
        """
        for place in (folder, *folder.parents):
            for path in (place / FILE, place / PROJECT):
                if path.is_file() and (table := _table(path)) is not None:
                    return cls._checked(path, table, commands)
        return None

    @classmethod
    def _checked(cls, path: Path, table: Mapping[str, Any], commands: Commands) -> "Configuration":
        by_command = {name: values for name, values in table.items() if isinstance(values, dict)}
        shared = {name: value for name, value in table.items() if name not in by_command}
        if missing := by_command.keys() - commands.keys():
            raise unknown(f"command in {path}:", missing, commands)
        options = {name: dict(_options(parser)) for name, parser in commands.items()}
        for name, values in by_command.items():
            if missing := set(map(_key, values)) - options[name].keys():
                raise unknown(f"option of {name} in {path}:", missing, options[name])
        known = sorted({option for of_command in options.values() for option in of_command})
        if missing := set(map(_key, shared)) - set(known):
            raise unknown(f"option in {path}:", missing, known)
        return cls(path, shared, by_command)

    def apply(self, command: str, parser: argparse.ArgumentParser) -> list[str]:
        """Make what the file says the defaults of a command's options; returns their names.

        Raises UsageError for a value that the option does not take.
        """
        options = dict(_options(parser))
        stated = {**self.shared, **self.by_command.get(command, {})}
        used = [key for key in stated if _key(key) in options]
        for key in used:
            action = options[_key(key)]
            action.default, action.required = self._value(action, key, stated[key]), False
        return used

    def _value(self, action: argparse.Action, key: str, value: object) -> Any:
        if action.nargs == 0:
            if isinstance(value, bool):
                return value
            raise self._wrong(key, value, "true or false")
        if isinstance(action, Each):
            return [self._one(action, key, item) for item in (value if isinstance(value, list) else [value])]
        return self._one(action, key, ",".join(map(str, value)) if isinstance(value, list) else value)

    def _one(self, action: argparse.Action, key: str, value: object) -> Any:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise self._wrong(key, value, f"a text or a number: {action.help or ''}".replace("%%", "%").rstrip(": "))
        try:
            parsed = action.type(str(value)) if callable(action.type) else str(value)
        except (ValueError, argparse.ArgumentTypeError) as error:
            raise UsageError(f"{self.path}: {key}: {error or value}") from error
        if action.choices is not None and parsed not in action.choices:
            raise self._wrong(key, value, f"one of {', '.join(map(str, action.choices))}")
        return self._located(parsed, action.metavar)

    def _located(self, value: Any, kind: object) -> Any:
        """Paths are meant from the folder of the file; URLs are none."""
        if "://" in str(value):
            return value
        place = self.path.parent / str(value)
        return str(place) if kind in PATHS or (kind in DATA and place.exists()) else value

    def _wrong(self, key: str, value: object, expected: str) -> UsageError:
        return UsageError(f"{self.path}: {key} is {shown(value)}; expected {expected}")


def _table(path: Path) -> Mapping[str, Any] | None:
    """What the file says of ptqc; None where a `pyproject.toml` says nothing."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except UNREADABLE as error:
        if path.name == PROJECT:  # of others, who complain of it themselves
            return None
        raise UsageError(f"cannot read {path}: {error}") from error
    tool = content.get("tool")
    table = content if path.name == FILE else tool.get("ptqc") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise UsageError(f"{path}: tool.ptqc is {shown(table)}; expected a table")
    return table


def _options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.Action]]:
    """What a file may say of a command: its options, by their names without the dashes in front."""
    for action in parser._actions:  # argparse has no public way to list them
        long = [option for option in action.option_strings if option.startswith("--")]
        if long and action.dest not in NOT_KEPT:
            yield long[0].removeprefix("--"), action


def _key(name: str) -> str:
    """TOML files often write `time_limit`."""
    return name.replace("_", "-")
