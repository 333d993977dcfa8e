"""What installed packages add, kind by kind: whether each can be used."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ptqc.calibration.ranges import added_method
from ptqc.codegen.targets import added_room
from ptqc.errors import UsageError
from ptqc.formats.families import added_family
from ptqc.ir.operators.registry import added_operator
from ptqc.passes.registry import added_rewrite
from ptqc.plugins import Plugin, PluginKind, by_name

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
