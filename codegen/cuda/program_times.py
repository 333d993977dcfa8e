"""How long the library of a program takes, and each of its calls: measured on a GPU, or predicted."""

from pathlib import Path

from ptqc.codegen.cuda.building import program_of
from ptqc.codegen.cuda.costs import predicted_steps as predicted
from ptqc.codegen.cuda.device_timer import DeviceTimer
from ptqc.codegen.cuda.kernel_times import KernelTimer
from ptqc.codegen.cuda.toolkit import Toolkit
from ptqc.codegen.cuda.trials import TimingEffort
from ptqc.codegen.kernels.assignment import Assignment
from ptqc.codegen.program.listing import Listing
from ptqc.codegen.program.timing import TimedProgram
from ptqc.runtime.cuda import CudaDevice
from ptqc.utils.store import Store

NANOSECONDS = 1e3


def timed(folder: Path) -> TimedProgram:
    """A program of a job. Raises TargetError where its kernels cannot be measured on the GPU that the job names.

    Predicted, each call takes its longest time on the chips of the job.
    """
    given = Assignment.read(folder)
    program, device = program_of(given), given.job["device"]
    if device is None:
        found = [max(step[gpu] for gpu in given.job["gpus"]) for step in predicted(program)]
    else:
        effort = TimingEffort.from_json(given.job["effort"])
        timer = DeviceTimer(CudaDevice.from_json(device), Toolkit.require(), given.job["gpus"], effort)
        found = KernelTimer(timer, Store(Path(given.job["store"])))(program)
    times = [NANOSECONDS * microseconds for microseconds in found]
    return TimedProgram.of(Listing.of(program), sum(times), times)
