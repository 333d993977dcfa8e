"""Every pass by name: those of ptqc, and the rewrites that installed packages add."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class ListedPass:
    """A pass as it is listed: what it does, in a line, and its options with their defaults."""

    effect: str
    name: str
    does: str
    options: dict[str, Any]

    @classmethod
    def of(cls, kind: type[Pass[Any, Any]]) -> "ListedPass":
        """A class of passes."""
        options = {
            option.name: option.default
            for option in dataclasses.fields(kind)  # type: ignore[arg-type]
            if isinstance(option.default, int | float | str | tuple)  # others are what the compile found before
        }
        return cls(kind.effect.value, kind.name, (kind.__doc__ or "").partition("\n")[0], options)

    def __str__(self) -> str:
        options = [f"{'':<32}{name} = {default!r}" for name, default in self.options.items()]
        return "\n".join([f"{self.effect:<8} {self.name:<22} {self.does}", *options])


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
    added = added_rewrites([point.name for point in entry_points(group=GROUP)])
    rewrites = (type(rewrite) for rewrite in (*default_rewrites(), *added))
    return PassList(tuple(map(ListedPass.of, (*rewrites, *EVENING, *MEASURING, *FITTING))))
