"""Objects of the user's own modules, named on the command line as `module:name`."""

import importlib
import re
import sys
from pathlib import Path


def is_named(text: str) -> bool:
    """Whether a text has the form `module:name`."""
    return re.fullmatch(r"[\w.]+:\w+", text) is not None


def imported(text: str) -> object:
    """The object `module:name`; the working folder is on the import path, as with `python -m`.

    Raises whatever the module raises, and AttributeError where it has no such name.
    """
    module, _, name = text.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return getattr(importlib.import_module(module), name)
