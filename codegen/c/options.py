"""What a user can choose about C source."""

import re
from dataclasses import dataclass, field

from ptqc.errors import UsageError
from ptqc.utils.arguments import shown

DEFAULT_NAME = "model"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True)
class COptions:
    """Options of the target c. c_name: what its files and functions begin with."""

    c_name: str = field(
        default=DEFAULT_NAME,
        metadata={
            "metavar": "NAME",
            "help": "what the file and the functions of a static library begin with (default: model)",
        },
    )

    def __post_init__(self) -> None:
        if not isinstance(self.c_name, str) or not _NAME.fullmatch(self.c_name):
            raise UsageError(f"c_name is {shown(self.c_name)}; give letters, digits and _, a letter first")


OPTIONS = COptions
