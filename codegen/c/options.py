"""What a user can choose about C source."""

from dataclasses import dataclass, field

from ptqc.codegen.c_names import check_c_name

DEFAULT_NAME = "model"


@dataclass(frozen=True)
class COptions:
    """Options of the target "c".

    Args:
        c_name: What its files and functions begin with.
    """

    c_name: str = field(
        default=DEFAULT_NAME,
        metadata={
            "metavar": "NAME",
            "help": "what the files and the functions of C source, or of a static library, begin with",
            "default_text": DEFAULT_NAME,
        },
    )

    def __post_init__(self) -> None:
        check_c_name(self.c_name)


OPTIONS = COptions
