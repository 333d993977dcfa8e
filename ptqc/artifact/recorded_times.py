"""The times of operators that an artifact recorded, for a compile that is to measure none."""

from os import PathLike

from ptqc.artifact import folder as artifact
from ptqc.errors import UsageError
from ptqc.passes.allocate.constraints.latency import recorded_times
from ptqc.passes.allocate.cost_model import OpLatencies


def times_of(folder: str | PathLike[str]) -> OpLatencies:
    """The times that the artifact in a folder recorded. Raises UsageError where it has none that were measured."""
    times = recorded_times(artifact.load(folder).manifest)
    if times is None:
        raise UsageError(f"{folder} was compiled with no latency budget, so it records no times of operators")
    if not times.is_measured:
        raise UsageError(
            f"the times that {folder} recorded were predicted, and would be predicted again: leave out --times"
        )
    return times
