"""Executors by name."""

from pathlib import Path

import pytest

from ptqc.errors import UsageError
from ptqc.utils.executors.processes import Processes
from ptqc.utils.executors.registry import executor_of
from ptqc.utils.executors.threads import Threads
from ptqc.utils.parallel import processors
from ptqc.utils.store import Store


def test_each_name_has_its_class(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert isinstance(executor_of("threads", 3, store), Threads)
    assert isinstance(executor_of("processes", 3, store), Processes)
    assert executor_of("threads", 3, store).workers == executor_of("processes", 3, store).workers == 3


def test_without_a_number_there_is_a_worker_for_each_processor(tmp_path: Path) -> None:
    assert {executor_of(name, 0, Store(tmp_path)).workers for name in ("threads", "processes")} == {processors()}


@pytest.mark.parametrize(
    ("name", "workers", "message"),
    [
        ("thread", 0, r"unknown executor thread \(did you mean threads\?\); known: threads, processes, ray"),
        ("dask", 0, "unknown executor dask; known: threads, processes, ray"),
        ("processes://10.0.0.1:80", 0, "executor is 'processes://10.0.0.1:80'; give processes"),
        ("threads://", 0, "give threads"),
        (None, 0, "executor is None; give one of threads, processes, ray"),
        ("ray://", 0, "give ray or ray://host:port"),
        ("threads", -1, "workers is -1; give a whole number, or 0"),
        ("threads", True, "workers is True; give a whole number"),
        ("threads", 1.5, "workers is 1.5; give a whole number"),
    ],
)
def test_what_is_refused(tmp_path: Path, name: str, workers: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        executor_of(name, workers, Store(tmp_path))
