"""The executors by name."""

from collections.abc import Mapping

from ptqc.errors import UsageError
from ptqc.utils.arguments import shown, unknown
from ptqc.utils.executors.base import Executor
from ptqc.utils.executors.processes import Processes
from ptqc.utils.executors.ray import Ray
from ptqc.utils.executors.threads import Threads
from ptqc.utils.store import Store

DEFAULT = Threads.name
EXECUTORS: Mapping[str, type[Executor]] = {one.name: one for one in (Threads, Processes, Ray)}


def executor_of(text: str, workers: int, store: Store) -> Executor:
    """The executor that a user names, as "threads" or "name://address". workers: units at a time; 0: one a processor.

    Raises UsageError for an unknown one, naming the known ones, and where what it needs is not installed.
    """
    if not isinstance(text, str):
        raise UsageError(f"executor is {shown(text)}; give one of {', '.join(EXECUTORS)}")
    name, separator, address = text.partition("://")
    if name not in EXECUTORS:
        raise unknown("executor", [text], EXECUTORS)
    if bool(separator) and not (EXECUTORS[name].takes_address and address):
        known = f"{name} or {name}://host:port" if EXECUTORS[name].takes_address else name
        raise UsageError(f"executor is {text!r}; give {known}")
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
        raise UsageError(f"workers is {shown(workers)}; give a whole number, or 0 for one for each processor")
    return EXECUTORS[name].of(store, workers, address)
