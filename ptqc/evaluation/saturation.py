"""What a user should know where the delivered file has 8-bit weights and this machine's ONNX Runtime saturates."""

from collections import defaultdict
from collections.abc import Sequence

from ptqc.codegen.onnxruntime import exact_sums
from ptqc.codegen.onnxruntime.export import Exported
from ptqc.execution.agreement import Difference
from ptqc.execution.onnxruntime import Feeds, Runner, session_options, tensors_of
from ptqc.execution.saturation import saturates
from ptqc.notes import Level, Note
from ptqc.utils.text import entries, percent


def saturation_notes(exported: Exported, samples: Sequence[Feeds]) -> tuple[Note, ...]:
    """A warning with what saturation does to the outputs on samples; none where it cannot happen."""
    needed = exact_sums.settings(exported)
    if not (needed and saturates()):
        return ()
    off = percent(_distance(exported, samples))
    message = (
        f"8-bit weights saturate in ONNX Runtime on this processor, unless a session sets {entries(needed)}: without, "
        f"outputs are off by {off} of their size here. artifact.session() sets it, and what is reported does not "
        "saturate; processors with VNNI need nothing"
    )
    return (Note("saturation", "", message, Level.WARNING),)


def _distance(exported: Exported, samples: Sequence[Feeds]) -> float:
    """The largest relative difference that saturation makes to a float output."""
    runners = [Runner(exported.proto, options=session_options(exact_sums=choice)) for choice in (True, False)]
    differences = defaultdict[str, Difference](Difference)
    for feeds in samples:
        wanted, found = (tensors_of(runner.run(feeds)) for runner in runners)
        for name in (name for name, array in wanted.items() if array.dtype.kind == "f"):
            differences[name].add(wanted[name], found[name])
    return max((difference.relative for difference in differences.values()), default=0.0)
