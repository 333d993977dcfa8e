"""What a format of activations is, and its parameters for one site. float32 is what a site without a format has."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np


class ActivationFormat(ABC):
    """How activations are rounded. known: all that there are."""

    known: ClassVar[tuple["ActivationFormat", ...]] = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """The stable key in plans: uint8, bfloat16."""

    def __str__(self) -> str:
        return self.name

    @abstractmethod
    def read(self, entry: Mapping[str, Any]) -> "ActivationParams":
        """Parameters from their entry in a plan. Raises KeyError, TypeError or ValueError where it is not one."""


class ActivationParams(ABC):
    """How the activations of one site are rounded: a format and its parameters. Equal ones round alike."""

    format: ActivationFormat

    @abstractmethod
    def rounded(self, x: np.ndarray) -> np.ndarray:
        """The values nearest to x in the format, float32."""

    def to_json(self) -> dict[str, Any]:
        """The entry in a plan."""
        return {"format": str(self.format)}


def read(entry: Mapping[str, Any]) -> ActivationParams:
    """Inverse of `to_json`, for an entry that names its site. Raises KeyError, TypeError or ValueError."""
    known = {form.name: form for form in ActivationFormat.known}
    form = known.get(entry["format"])
    if form is None:
        raise ValueError(f"site {entry['site']!r} is {entry['format']}; activations are {' or '.join(known)}")
    return form.read(entry)
