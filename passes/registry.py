"""Every pass by name: those of ptqc, and the rewrites that installed packages add."""

import dataclasses
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ptqc.arguments import unknown
from ptqc.errors import UsageError
from ptqc.passes.base import Effect, Pass, Rewrite
from ptqc.passes.schedule import EVENING, FITTING, MEASURING, default_rewrites

# A package adds a rewrite with [project.entry-points."ptqc.rewrites"] my-pass = "package.module:MyPass".
GROUP = "ptqc.rewrites"


def added_rewrites(names: Sequence[str]) -> tuple[Rewrite, ...]:
    """The rewrites of installed packages by name, each with its default options.

    Raises UsageError for an unknown name, and for a package that cannot be loaded or gives no rewrite.
    """
    known = {point.name: point for point in entry_points(group=GROUP)}
    if missing := set(names) - known.keys():
        raise unknown("rewrite", missing, known)
    return tuple(_loaded(known[name]) for name in names)


def _loaded(point: EntryPoint) -> Rewrite:
    try:
        rewrite: Rewrite = point.load()()
    except Exception as error:  # whatever the package raises
        raise UsageError(f"rewrite {point.name!r} of {point.value} cannot be loaded: {error}") from error
    if getattr(rewrite, "effect", None) != Effect.REWRITE or not callable(getattr(rewrite, "apply", None)):
        raise UsageError(
            f"rewrite {point.name!r} of {point.value} is no rewrite: give a class with name, effect and apply, "
            "as ptqc.passes.base.Pass says"
        )
    return rewrite


def listing() -> str:
    """All passes in the order in which they run: effect, name, what they do, and their options with the defaults."""
    added = added_rewrites([point.name for point in entry_points(group=GROUP)])
    lines = [line for rewrite in (*default_rewrites(), *added) for line in _told(type(rewrite))]
    return "\n".join([*lines, *(line for kind in (*EVENING, *MEASURING, *FITTING) for line in _told(kind))])


def _told(kind: type[Pass[Any, Any]]) -> Iterator[str]:
    does = (kind.__doc__ or "").partition("\n")[0]
    yield f"{kind.effect.value:<8} {kind.name:<22} {does}"
    for option in dataclasses.fields(kind):  # type: ignore[arg-type]
        if isinstance(option.default, int | float | str | tuple):  # others are what the compile found before
            yield f"{'':<32}{option.name} = {option.default!r}"
