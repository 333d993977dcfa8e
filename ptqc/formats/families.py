"""The families of weight formats, in the order in which a solver tries them: those of ptqc, then those of packages."""

from inspect import isabstract

from ptqc.formats.base import Format
from ptqc.formats.codebook import Codebook
from ptqc.formats.entropy import Entropy
from ptqc.formats.float8 import Float8
from ptqc.formats.floats import Float
from ptqc.formats.palette import Palette
from ptqc.formats.safe import Safe
from ptqc.formats.sparse import Sparse, SparseCodebook, TwoOfFour
from ptqc.formats.trellis import Trellis
from ptqc.formats.uniform import Integer
from ptqc.formats.vector_codebook import VectorCodebook
from ptqc.plugins import Plugin

FAMILIES: tuple[type[Format], ...] = (
    Float,
    Integer,
    Safe,
    Codebook,
    VectorCodebook,
    Sparse,
    SparseCodebook,
    TwoOfFour,
    Trellis,
    Entropy,
    Palette,
    Float8,
)


def added_family(plugin: Plugin) -> type[Format]:
    """The class of a format that a package adds. Raises UsageError where it cannot be loaded or is none."""
    family = plugin.load()
    if not (isinstance(family, type) and issubclass(family, Format)):
        raise plugin.fault("is not a format: give a class that derives from Coded, Scaled or Format of ptqc.formats")
    if isabstract(family):
        raise plugin.fault(f"lacks {', '.join(sorted(family.__abstractmethods__))}, which every format has")
    if getattr(family, "family", None) != plugin.name or plugin.name in {own.family for own in FAMILIES}:
        raise plugin.fault("has to have its family as name, and no family of ptqc's own")
    is_packed = not all(member.is_plain for member in family.members())
    if is_packed and family.mark in {own.mark for own in FAMILIES}:
        raise plugin.fault(f"has the mark {family.mark!r}, which a format of ptqc has; give another one")
    return family
