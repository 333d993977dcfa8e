"""What a worker does with a message, wherever it is."""

import platform
import traceback
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from ptqc.errors import InternalError, PtqcError
from ptqc.utils.executors.base import Kind, Message, Outcome, Reply, UnitOfWork
from ptqc.utils.store import store_at
from ptqc.utils.threads import one_blas_thread

PACKAGE = "ptqc.passes."  # of all units; importing other modules may run them, as `ptqc.__main__`


def work(document: Mapping[str, Any]) -> dict[str, Any]:
    """Solve the problem that a message names, and store its result; the reply. Both as JSON has them."""
    message = Message(**document)
    try:
        # Imported outside of the frame that opens the store: a library may keep the frames that import it.
        reply = _refused(message) or _solved(message, unit_of(message.unit))
    except PtqcError as error:
        reply = Reply(Outcome.FAILED, platform.node(), str(error), type(error).__name__)
    except MemoryError as error:
        reply = Reply(Outcome.FAILED, platform.node(), str(error), MemoryError.__name__)
    except Exception as error:  # the compile that asked tells of it
        reply = Reply(Outcome.FAILED, platform.node(), str(error), type(error).__name__, traceback.format_exc())
    return reply.to_json()


def _refused(message: Message) -> Reply | None:
    differences = Kind.of(message.kind).differences(Kind.here())
    return Reply(Outcome.REFUSED, platform.node(), "; ".join(differences)) if differences else None


def _solved(message: Message, kind: type[UnitOfWork[Any]]) -> Reply:
    store = store_at(message.store)
    entry = store.open(message.problem)
    if entry is None:
        return Reply(Outcome.MISSING, platform.node())
    with one_blas_thread():
        result = kind.unpack(entry.document, entry.arrays).solve()
    store.put(message.result, *kind.pack_result(result))
    return Reply(Outcome.SOLVED, platform.node())


def name_of(unit: UnitOfWork[Any]) -> str:
    """The class of a unit, as messages have it."""
    return f"{type(unit).__module__}:{type(unit).__qualname__}"


def unit_of(name: str) -> type[UnitOfWork[Any]]:
    """The class that a message names. Raises InternalError for what is no unit of ptqc: nothing else is imported."""
    module, _, attribute = name.partition(":")
    unit = getattr(import_module(module), attribute, None) if module.startswith(PACKAGE) else None
    if not (isinstance(unit, type) and issubclass(unit, UnitOfWork)):
        raise InternalError(f"{name!r} is not a unit of work of ptqc")
    return unit
