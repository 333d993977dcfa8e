"""Every pass by name: those of ptqc, and the rewrites that installed packages add."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ptqc.calibration.ranges import added_method
from ptqc.codegen.targets import added_room
from ptqc.errors import UsageError
from ptqc.formats.families import added_family
from ptqc.ir.operators.registry import added_operator
from ptqc.passes.base import Effect, Pass, Rewrite
from ptqc.passes.canonicalize.rewrites import default_rewrites
from ptqc.passes.pipeline import ALLOCATION, ANALYSIS, EQUALIZATION
from ptqc.plugins import Plugin, PluginKind, by_name
from ptqc.utils.arguments import unknown


def added_rewrites(names: Sequence[str]) -> tuple[Rewrite, ...]:
    """The rewrites of installed packages by name, each with its default options.

    Raises UsageError for an unknown name, and for a package that cannot be loaded or gives no rewrite.
    """
    known = by_name(PluginKind.REWRITE)
    if missing := set(names) - known.keys():
        raise unknown("rewrite", missing, known)
    return tuple(added_rewrite(known[name]) for name in names)


def added_rewrite(plugin: Plugin) -> Rewrite:
    """A rewrite that a package adds. Raises UsageError where it cannot be loaded or is none."""
    kind = plugin.load()
    try:
        rewrite: Rewrite = kind()
    except Exception as error:  # whatever the package raises
        raise plugin.fault(f"cannot be made: {type(error).__name__}: {error}") from error
    if getattr(rewrite, "effect", None) != Effect.REWRITE or not callable(getattr(rewrite, "apply", None)):
        raise plugin.fault("is not a rewrite: give a class with name, effect and apply, as ptqc.passes.base.Pass says")
    return rewrite


@dataclass(frozen=True)
class ListedPass:
    """A pass as it is listed: what it does, in a line, and its options with their defaults.

    package: that adds it; empty for those of ptqc.
    """

    effect: str
    name: str
    does: str
    options: dict[str, Any]
    package: str = ""

    @classmethod
    def of(cls, kind: type[Pass[Any, Any]], package: str = "") -> "ListedPass":
        """A class of passes."""
        options = {
            option.name: option.default
            for option in dataclasses.fields(kind)  # type: ignore[arg-type]
            if isinstance(option.default, int | float | str | tuple)  # others are what the compile found before
        }
        return cls(kind.effect.value, kind.name, (kind.__doc__ or "").partition("\n")[0], options, package)

    def __str__(self) -> str:
        options = [f"{'':<32}{name} = {default!r}" for name, default in self.options.items()]
        added = [f"{'':<32}added by {self.package}; --rewrite runs it"] if self.package else []
        return "\n".join([f"{self.effect:<8} {self.name:<22} {self.does}", *added, *options])


@dataclass(frozen=True)
class PassList:
    """All passes, in the order in which they run."""

    passes: tuple[ListedPass, ...]

    def to_json(self) -> dict[str, Any]:
        """The document of `--json`."""
        return {"passes": [dataclasses.asdict(one) for one in self.passes]}

    def __str__(self) -> str:
        return "\n".join(map(str, self.passes))


def listing() -> PassList:
    """All passes in the order in which they run: effect, name, what they do, and their options with the defaults."""
    known = by_name(PluginKind.REWRITE)
    added = [ListedPass.of(type(added_rewrite(known[name])), known[name].package) for name in sorted(known)]
    rewrites = (ListedPass.of(type(rewrite)) for rewrite in default_rewrites())
    return PassList((*rewrites, *added, *map(ListedPass.of, (*EQUALIZATION, *ANALYSIS, *ALLOCATION))))


# What installed packages add, kind by kind: whether each can be used.

LOADERS: Mapping[PluginKind, Callable[[Plugin], object]] = {
    PluginKind.REWRITE: added_rewrite,
    PluginKind.FORMAT: added_family,
    PluginKind.OPERATOR: added_operator,
    PluginKind.OBSERVER: added_method,
    PluginKind.TARGET: added_room,
}
# Used wherever they are installed, so that no compile goes on without one.
ALWAYS = (PluginKind.FORMAT, PluginKind.OPERATOR)


def check_extensions() -> None:
    """Raises UsageError for a format or an operator of an installed package that cannot be used."""
    for kind in ALWAYS:
        for plugin in by_name(kind).values():
            LOADERS[kind](plugin)


def examined() -> Iterator[tuple[Plugin, UsageError | None]]:
    """Everything that packages add, with the error of what cannot be used."""
    for kind in PluginKind:
        for plugin in by_name(kind).values():
            try:
                LOADERS[kind](plugin)
            except UsageError as error:
                yield plugin, error
            else:
                yield plugin, None


def used(options: Mapping[str, Any], targets: Sequence[str] = ()) -> list[dict[str, str]]:
    """What packages add and a compile with these options uses, for manifests and for the keys of what is measured."""
    names = {
        PluginKind.REWRITE: options.get("rewrites", ()),
        PluginKind.OBSERVER: (options.get("observer", ""),),
        PluginKind.TARGET: targets,
    }
    every = (plugin for kind in PluginKind for plugin in by_name(kind).values())
    return [one.to_json() for one in every if one.kind in ALWAYS or one.name in names[one.kind]]
