"""Workers in processes: the same bytes, nothing left, and repetition of what is lost."""

import os
import random
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from problems import environment, gone, marked, problem, told

from ptqc.errors import InternalError, Interrupted, UsageError
from ptqc.utils.executors import remote
from ptqc.utils.executors.base import Kind, Message, Outcome
from ptqc.utils.executors.processes import Processes
from ptqc.utils.executors.remote import Remote
from ptqc.utils.executors.worker import name_of, unit_of, work
from ptqc.utils.parallel import in_order
from ptqc.utils.store import Store

COUNT = 6
DRIVER = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from problems import problem
from ptqc.utils.executors.processes import Processes
from ptqc.utils.store import Store
executor = Processes(Store(Path({store!r})), 1)
executor.solve("first", problem)
print("solved", flush=True)
executor.solve("second", lambda: problem(1, 1500, 1500))
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Two workers for several tests: each takes a second to start."""
    with Processes(Store(tmp_path_factory.mktemp("shared")), 2) as executor:
        yield executor


def solved(executor: Remote, count: int = COUNT) -> list[object]:
    """What becomes of some problems."""
    solve = lambda seed: told(executor.solve(str(seed), lambda: problem(seed)))  # noqa: E731
    return list(in_order(solve, range(count), workers=executor.workers))


@pytest.fixture(scope="module")
def expected() -> list[object]:
    return [told(problem(seed).solve()) for seed in range(COUNT)]


def pids(executor: Processes) -> list[int]:
    return [worker._process.pid for worker in executor._all]


def test_the_bytes_are_those_of_threads_and_nothing_stays(shared: Processes, expected: list[object]) -> None:
    assert solved(shared) == expected
    assert {path.name for path in shared.store.folder.iterdir()} == {shared._results[str(i)] for i in range(COUNT)}
    shared.settle(map(str, range(COUNT)))
    assert list(shared.store.folder.iterdir()) == []


def test_what_is_in_the_store_is_not_solved_again(shared: Processes, expected: list[object]) -> None:
    again = Processes(shared.store, 2)
    solved(shared)
    assert solved(again) == expected
    assert pids(again) == []
    again.settle(map(str, range(COUNT)))


@pytest.mark.long
def test_workers_that_are_killed_cost_repetition(store: Store, expected: list[object]) -> None:
    killed, stop, generator = list[int](), threading.Event(), random.Random(0)

    def kill() -> None:
        while not stop.wait(generator.uniform(0.05, 0.6)) and len(killed) < remote.ATTEMPTS - 1:
            for worker in list(executor._all)[:1]:
                killed.append(worker._process.pid)
                worker._process.send_signal(signal.SIGKILL)

    with Processes(store, 2) as executor:
        thread = threading.Thread(target=kill)
        thread.start()
        result = solved(executor)
        stop.set()
        thread.join()
        executor.settle(map(str, range(COUNT)))
        left = pids(executor)
    assert result == expected
    assert killed
    assert gone([*killed, *left], 1)
    assert [path.name for path in store.folder.iterdir() if not path.name.startswith(".new-")] == []


def test_workers_that_always_end_stop_the_compile(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "false")
    with Processes(store, 1) as executor, pytest.raises(Interrupted) as caught:
        executor.solve("w1", problem)
    assert "w1 was given to 4 workers, and none gave a result: its process ended (exit code 1)" in str(caught.value)
    assert "run the same command again" in str(caught.value)


def test_workers_end_with_the_process_that_started_them(store: Store) -> None:
    mark, tests = str(uuid.uuid4()), str(Path(__file__).parent)
    code = DRIVER.format(tests=tests, store=str(store.folder))
    driver = subprocess.Popen([sys.executable, "-c", code], env=environment(mark), stdout=subprocess.PIPE, text=True)
    with driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "solved\n"
        started = marked(mark)
        assert len(started) == 2
        os.kill(driver.pid, signal.SIGKILL)
    assert gone(started)


def test_a_worker_that_differs_is_refused(shared: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(Kind.here(), versions={**Kind.here().versions, "numpy": "0.1"})
    monkeypatch.setattr(Kind, "here", lambda: other)
    with pytest.raises(
        UsageError, match=r"is not like this process.* numpy is .* there and 0.1 here.*--executor threads"
    ):
        shared.solve("w1", lambda: problem(99))


def test_an_error_of_a_worker_has_its_trace(shared: Processes) -> None:
    broken = replace(problem(), second=np.full((1, 16, 16), -1, np.float32))
    with pytest.raises(InternalError, match=r"(?s)LinAlgError on .* while w1 was solved: .*Traceback.*cholesky"):
        shared.solve("w1", lambda: broken)


def message(place: Path) -> dict[str, object]:
    """For a problem that is not there."""
    return Message(name_of(problem()), str(place), "0" * 64, {"step": "result"}, Kind.here().to_json()).to_json()


def test_a_store_that_a_worker_does_not_see_is_told(store: Store) -> None:
    assert work(message(store.folder))["outcome"] == Outcome.MISSING


def test_errors_of_ptqc_go_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    reply = work(message(tmp_path / "file"))
    assert (reply["outcome"], reply["error"]) == (Outcome.FAILED, "UsageError")


@pytest.mark.parametrize("name", ["os:system", "ptqc.__main__:run", "ptqc.passes.quantize.solve_weights:digest"])
def test_only_units_of_ptqc_are_imported(name: str) -> None:
    with pytest.raises(InternalError, match="is not a unit of work"):
        unit_of(name)


@pytest.mark.long
def test_what_somebody_uses_is_discarded_when_it_is_free(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PATIENCE", 0.1)
    with Processes(store, 1) as executor:
        executor.solve("one", problem)
        user = store.anew()
        user.open(executor._results["one"])
        executor.settle(["one"])
        assert len(list(store.folder.iterdir())) == 1
        del user
    assert list(store.folder.iterdir()) == []
