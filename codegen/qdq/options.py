"""What a user can choose about the QDQ model."""

from dataclasses import dataclass, field

from ptqc.errors import UsageError
from ptqc.runtime.qnn import CHIPS
from ptqc.utils.arguments import one_of, shown

INSTALLED = "installed"
RUNTIMES = ("openvino", "qnn")


@dataclass(frozen=True)
class QdqOptions:
    """Options of the target "qdq".

    Args:
        verify_in: Runtimes besides ONNX Runtime in which the model is run
            before it is delivered, separated by commas; "installed": those
            that are installed; "": none.
        chips: Hexagon architectures that get context binaries.
        int4: Store weights of up to 4 bits as INT4.
    """

    verify_in: str = field(
        default=INSTALLED,
        metadata={
            "metavar": "RUNTIME,…",
            "help": "run the QDQ model in these runtimes before it is delivered; installed: in those that are here",
            "default_text": INSTALLED,
            "values": lambda: (INSTALLED, *RUNTIMES),
        },
    )
    chips: str = field(
        default="",
        metadata={
            "metavar": "CHIP,…",
            "help": "write context binaries for these Hexagon NPUs",
            "values": lambda: tuple(CHIPS),
        },
    )

    int4: bool = field(
        default=False,
        metadata={
            "action": "store_true",
            "default": None,  # as what nobody gave belongs to no target
            "help": "store weights of up to 4 bits as INT4, half a byte each; ONNX Runtime then computes these layers "
            "in float, and so does OpenVINO, except for matmuls",
        },
    )

    def __post_init__(self) -> None:
        for name, value in (("verify_in", self.verify_in), ("chips", self.chips)):
            if not isinstance(value, str):
                raise UsageError(f"{name} is {shown(value)}; give names, separated by commas")
        if not isinstance(self.int4, bool):
            raise UsageError(f"int4 is {shown(self.int4)}; give true or false")
        for name in self.named_runtimes:
            one_of("verify_in", name, (INSTALLED, *RUNTIMES))
        for chip in self.named_chips:
            one_of("chips", chip, tuple(CHIPS))

    @property
    def named_runtimes(self) -> tuple[str, ...]:
        """Runtimes that the user named; those must be there."""
        return () if self.verify_in == INSTALLED else _names(self.verify_in)

    @property
    def named_chips(self) -> tuple[str, ...]:
        """Chips to write context binaries for."""
        return _names(self.chips)


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, (name.strip() for name in text.split(",")))))


OPTIONS = QdqOptions
