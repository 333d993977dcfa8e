"""What installed packages add to ptqc, by entry points: a group for each kind of thing.

[project.entry-points."ptqc.observers"]
half = "my_package.ranges:half"
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, TypeVar, cast

from ptqc.errors import UsageError

# Entry points of installed packages, read again only where packages may have come or gone.
#
# Reading them opens two files of every package: a tenth of the time of compiling a tiny network, which asks 26 times.

# A folder of packages as it was: its path, device, inode and time of its last change.
Place = tuple[str, int, int, int]


def entry_points(group: str) -> metadata.EntryPoints:
    """The entry points of a group, as `importlib.metadata` finds them."""
    return cast("metadata.EntryPoints", _within(tuple(map(_place, sys.path))).select(group=group))


@lru_cache(maxsize=4)
def _within(_places: tuple[Place, ...]) -> Any:
    return metadata.entry_points()  # a SelectableGroups before Python 3.12, EntryPoints since


def _place(path: str) -> Place:
    """Installing or removing a package changes the time of the folder that it is in."""
    try:
        result = Path(path).stat()
    except OSError:
        return path, 0, 0, 0
    return path, result.st_dev, result.st_ino, result.st_mtime_ns


Loaded = TypeVar("Loaded")


class PluginKind(StrEnum):
    """What can be added. Formats and operators are used wherever their package is installed, others by name."""

    REWRITE = "rewrite"
    FORMAT = "format"
    OPERATOR = "operator"
    OBSERVER = "observer"
    TARGET = "target"

    @property
    def group(self) -> str:
        """The group of its entry points."""
        return f"ptqc.{self}s"


@dataclass(frozen=True)
class Plugin:
    """One thing that a package adds.

    value: where it lies, as "module:name". package: whose it is, with version. rival: another package that adds
    something under the same name; then neither can be loaded.
    """

    kind: PluginKind
    name: str
    value: str
    package: str
    rival: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} of {self.package} ({self.value})"

    def load(self) -> Any:
        """The object. Raises UsageError for whatever its package raises, and where two packages add it."""
        if self.rival:
            raise self.fault(f"is added by {self.rival} as well; uninstall one of them")
        try:
            return EntryPoint(self.name, self.value, self.kind.group).load()
        except Exception as error:
            raise self.fault(f"cannot be loaded: {type(error).__name__}: {error}") from error

    def fault(self, what: str) -> UsageError:
        """The error of one that cannot be used. what: why, as the end of a sentence that begins with it."""
        return UsageError(f"{self} {what}")

    def to_json(self) -> dict[str, str]:
        """The entry of manifests and of the store's keys."""
        return {"kind": str(self.kind), "name": self.name, "package": self.package}


def added(kind: PluginKind) -> tuple[Plugin, ...]:
    """All of one kind that packages add, by name, then by package."""
    result = (Plugin(kind, point.name, point.value, _package(point)) for point in entry_points(group=kind.group))
    return tuple(sorted(result, key=lambda one: (one.name, one.package)))


def by_name(kind: PluginKind) -> dict[str, Plugin]:
    """The same, by name."""
    result = dict[str, Plugin]()
    for plugin in added(kind):
        first = result.setdefault(plugin.name, plugin)
        if first is not plugin:
            result[plugin.name] = replace(first, rival=plugin.package)
    return result


def usable(kind: PluginKind, loaded: Callable[[Plugin], Loaded]) -> tuple[Loaded, ...]:
    """What `loaded` makes of all of one kind, but for those that it refuses; `check` raises their errors."""
    result = list[Loaded]()
    for plugin in by_name(kind).values():
        try:
            result.append(loaded(plugin))
        except UsageError:
            continue
    return tuple(result)


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "an unknown package"
