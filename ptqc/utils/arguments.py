"""Arguments of the API against what somebody passes by mistake: every error names the argument and says what it is."""

import errno
import os
import shlex
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from ptqc.errors import UsageError
from ptqc.utils.text import shorten, visible

T = TypeVar("T")
SHOWN = 60


def shown(value: object) -> str:
    """A value as errors tell it: "3", "'mean'", "a list"; long ones by their type."""
    text = visible(repr(value))
    return text if len(text) <= SHOWN else f"a {type(value).__name__}"


def command_line() -> str | None:
    """The command of ptqc that this process runs, for a shell; None in another program."""
    program = Path(sys.argv[0])
    is_ptqc = program.name == "ptqc" or program.parts[-2:] == ("ptqc", "__main__.py")
    return shlex.join(["ptqc", *sys.argv[1:]]) if is_ptqc else None


def path_of(name: str, value: object) -> Path:
    """A path given as text or as a path. Raises UsageError for anything else, and for what no system takes for one."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise UsageError(f"{name} is {shown(value)}; give a path")
    path = Path(os.fspath(value))
    try:
        path.lstat()
    except ValueError as error:  # a null character
        raise UsageError(f"{name} is {shown(value)}, which is not a path: {error}") from error
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise UsageError(f"{name} is not a path: {error.strerror}, {shorten(visible(str(path)), SHOWN)}") from error
    return path


def of_kind(name: str, value: object, kind: type[T]) -> T | None:
    """A value of this kind, or None. Raises UsageError for any other."""
    if value is None or isinstance(value, kind):
        return value
    raise UsageError(f"{name} is {shown(value)}; give a {kind.__name__} (of {kind.__module__})")


def one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    """Raises UsageError for a value that is none of the known ones."""
    if value not in known:
        raise UsageError(f"{name} is {value!r}; known: {', '.join(known)}")


def unknown(what: str, texts: Iterable[str], known: Iterable[str], others: Iterable[str] = ()) -> UsageError:
    """An error that names what is known, and what may have been meant. others: known as well, but not listed."""
    names, known = sorted(texts), list(known)
    message = ", ".join(shorten(visible(name), SHOWN) for name in names)
    return UsageError(f"unknown {what} {message}{meant(names, [*known, *others])}; known: {', '.join(known)}")


def meant(names: Iterable[str], known: Iterable[str]) -> str:
    """Asks " (did you mean …?)" of known names that are like one of `names`; empty where none is."""
    known = list(known)
    close = [match for name in names for match in get_close_matches(name, known, 1)]
    return f" (did you mean {', '.join(close)}?)" if close else ""
