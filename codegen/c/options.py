"""What a user can choose about C source."""

from dataclasses import dataclass, field

from ptqc.codegen.c_names import check_c_name
from ptqc.errors import UsageError
from ptqc.utils.arguments import shown

DEFAULT_NAME = "model"


@dataclass(frozen=True)
class COptions:
    """Options of the target "c".

    Args:
        c_name: What its files and functions begin with.
        c_stream: The axis of time, along which the function takes new frames and not whole windows.
        c_frames: How many frames it takes in a call. None: as few as the strides of the network allow.
    """

    c_name: str = field(
        default=DEFAULT_NAME,
        metadata={
            "metavar": "NAME",
            "help": "what the files and the functions of C source, or of a static library, begin with",
            "default_text": DEFAULT_NAME,
        },
    )

    c_stream: int | None = field(
        default=None,
        metadata={
            "metavar": "AXIS",
            "type": int,
            "help": "C source that takes new frames along this axis of the input, and not whole windows",
            "default_text": "whole windows",
        },
    )
    c_frames: int | None = field(
        default=None,
        metadata={
            "metavar": "N",
            "type": int,
            "help": "with --c-stream, how many frames a call takes",
            "default_text": "as few as the strides allow",
        },
    )

    def __post_init__(self) -> None:
        check_c_name(self.c_name)
        for name, value in (("c_stream", self.c_stream), ("c_frames", self.c_frames)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise UsageError(f"{name} is {shown(value)}; give a whole number")
        if self.c_stream is not None and self.c_stream < 1:
            raise UsageError(
                f"c_stream is {self.c_stream}: expected the axis of time, 1 or more, as axis 0 is that of samples"
            )
        if self.c_frames is not None and self.c_frames < 1:
            raise UsageError(f"c_frames is {self.c_frames}: expected how many frames a call takes, 1 or more")
        if self.c_frames is not None and self.c_stream is None:
            raise UsageError("c_frames counts the frames of a call: give c_stream, the axis of time, as well")


OPTIONS = COptions
