"""Every failure a user can meet, each with the exit code that the command line returns, as a tree::

    PtqcError
    ├── UsageError           2   an option, a budget or an output folder that cannot be accepted
    ├── ModelError           2   a model that cannot be read or is not supported
    │   ├── Unsupported      2   an operator that gradients cannot be computed through
    │   └── NotFinite        2   a value that is NaN or infinite in the quantized model only
    ├── CalibrationError     2   calibration data that does not fit the model
    ├── TargetError          2   a target that cannot be built for this model, or not run on this machine
    │   ├── NoKernel         2   an operator or a value that a target has no kernel for
    │   └── GpuMemoryError   2   a GPU without room for a library or for a run of it
    ├── Infeasible           2   a budget below what can be reached
    ├── Missed               2   a latency, memory or loss that the finished file does not keep, where that counts
    ├── Interrupted          3   stopped by the environment; running again resumes
    ├── IntegrityError       4   an artifact that is not what was delivered, or not of this float model
    └── InternalError       70   a fault of the compiler
        ├── PassError       70   a pass broke its promise
        └── VerificationError 70 the written artifact failed its own checks

The numbers are exit codes.
"""

import errno
from collections.abc import Mapping
from typing import Any

# What reading JSON or TOML raises for a file that is none; RecursionError where it is nested too deeply.
UNREADABLE = (OSError, ValueError, RecursionError)
# What taking apart what was read raises where it has another form than expected.
MALFORMED = (ValueError, RecursionError, LookupError, TypeError, AttributeError, ArithmeticError)

# What disks and other limits of a machine give, as numbers of an OSError.
LIMITS = frozenset(
    getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EIO", "EROFS", "EFBIG", "EMFILE", "ENFILE", "ENOMEM")
)


class PtqcError(Exception):
    """Base of all errors that ptqc raises on purpose; the message says what to do.

    found: what a command had found by then, for the document of `--json`.
    """

    exit_code = 70
    found: Mapping[str, Any] = {}

    @property
    def figures(self) -> Mapping[str, Any]:
        """The attributes of the error, as the document of `--json` has them."""
        return {}


class UsageError(PtqcError):
    """An option, a budget or an output folder is not acceptable."""

    exit_code = 2


class ModelError(PtqcError):
    """The model cannot be read, is damaged, or uses something unsupported."""

    exit_code = 2


class Unsupported(ModelError):
    """The model has an operator that gradients cannot be computed through."""


class NotFinite(ModelError):
    """A value is NaN or infinite in the quantized model where the float model has a number. finding: which, and where.

    The message adds advice to that.
    """

    def __init__(self, finding: str, advice: str) -> None:
        super().__init__(f"{finding}; the float model is finite there: {advice}")
        self.finding = finding


class CalibrationError(PtqcError):
    """The calibration data cannot be read or does not fit the model's inputs."""

    exit_code = 2


class TargetError(PtqcError):
    """A target cannot be built for this model, or its library not be run on this machine."""

    exit_code = 2


class NoKernel(TargetError):
    """A target has no kernel for an operator or a value of this model."""


class GpuMemoryError(TargetError):
    """A GPU has no room for a library, or for so many samples at once; a smaller run goes on to work."""


class IntegrityError(PtqcError):
    """A file of an artifact was changed, is missing or was added, or a float model is not the one that was compiled."""

    exit_code = 4


class Infeasible(PtqcError):
    """No plan meets the budget.

    unit: of the two others: "bytes" (of the file, of memory, flash or RAM), or "ns" where a latency cannot be met.
    smallest: the least that can be reached; about that, where nothing was measured yet. Of two budgets that contradict
    each other: the bytes that the other one needs.
    blockers: (what, how much) pairs that make up most of it, largest first; may be empty.
    """

    exit_code = 2

    def __init__(
        self, message: str, smallest: int, blockers: tuple[tuple[str, int], ...] = (), unit: str = "bytes"
    ) -> None:
        super().__init__(message)
        self.smallest = smallest
        self.blockers = blockers
        self.unit = unit

    @property
    def figures(self) -> Mapping[str, Any]:
        """The smallest, its unit, and what makes up most of it."""
        blockers = [{"name": name, "amount": amount} for name, amount in self.blockers]
        return {"smallest": self.smallest, "unit": self.unit, "blockers": blockers}


class Missed(PtqcError):
    """The finished file does not keep a budget, and was not delivered for that.

    budget: as it was requested, None where the file is not fit for use. limit, value: the most that it allows, and what
    the file needs (of a loss the bound on it), in `unit`.
    """

    exit_code = 2

    def __init__(
        self,
        message: str,
        budget: str | None = None,
        limit: float | None = None,
        value: float | None = None,
        unit: str | None = None,
    ) -> None:
        super().__init__(message)
        self.budget, self.limit, self.value, self.unit = budget, limit, value, unit

    @property
    def figures(self) -> Mapping[str, Any]:
        """The budget, and what the file needs of it; nothing where the file is not fit for use."""
        if self.budget is None:
            return {}
        return {"budget": self.budget, "limit": self.limit, "value": self.value, "unit": self.unit}


class TimeTooShort(PtqcError):
    """A time limit leaves out so much that the file would not be fit for use.

    seconds: that the step which was cut short takes as a whole, about.
    """

    exit_code = 2

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class Interrupted(PtqcError):
    """The environment stopped the work (disk, memory, signal); finished parts are kept."""

    exit_code = 3


class InternalError(PtqcError):
    """A fault of the compiler itself."""

    exit_code = 70


class PassError(InternalError):
    """A pass did not keep its promise."""


class VerificationError(InternalError):
    """The written artifact failed one of its checks; it was not published."""
