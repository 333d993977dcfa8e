"""Weights solved by Ray: the same bytes, on the loopback interface alone, and nothing left of a cluster."""

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp

import pytest
from killing import Killable, Usual, check_killed, driver
from problems import command_of, environment, gone, marked

from ptqc.errors import UsageError
from ptqc.utils.executors import ray as ptqc_ray
from ptqc.utils.executors.ray import Ray
from ptqc.utils.store import Store

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'ptqc[ray]'")
LOCAL = ("--executor", "ray", "--workers", "2")
CLUSTER = Path(__file__).with_name("ray_cluster.py")
# Solves one problem and prints which addresses are listened on.
LISTENING = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from problems import command_of, problem, told
from ptqc.utils.executors.ray import Ray
from ptqc.utils.store import Store
with Ray(Store(Path({store!r})), 1) as executor:
    assert told(executor.solve("one", problem)) == told(problem().solve())
    for name in ("tcp", "tcp6"):
        for line in Path("/proc/net", name).read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A":
                print(inode, local.partition(":")[0])
"""
LOOPBACKS = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def test_without_ray_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptqc_ray, "find_spec", lambda _name: None)
    with pytest.raises(UsageError, match=r"executor ray needs Ray, which is not installed: pip install 'ptqc\[ray\]'"):
        Ray.of(Store(tmp_path), 1)


@pytest.mark.slow
@needs_ray
def test_a_cluster_of_its_own_gives_the_same_bytes_and_goes(tmp_path: Path, usual: Usual) -> None:
    one = Killable(tmp_path / "one", LOCAL, {"HOME": str(tmp_path)})
    assert one.finish(one.start()) == usual.found
    assert not (tmp_path / ".ray").exists()


@needs_ray
@pytest.mark.slow
def test_it_listens_on_the_loopback_interface_alone(tmp_path: Path) -> None:
    before = listening()
    code = LISTENING.format(tests=str(CLUSTER.parent), store=str(tmp_path / "store"))
    done = subprocess.run([sys.executable, "-c", code], env=environment(""), capture_output=True, text=True, check=True)
    new = [line.split() for line in done.stdout.splitlines() if line.split()[0] not in before]
    assert len(new) > 4
    assert {address for _, address in new} <= LOOPBACKS


def listening() -> set[str]:
    """Sockets that wait for connections."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    return {words[9] for words in lines if words[3] == "0A"}


def called(*names: str) -> Callable[[int, list[int]], list[int]]:
    """The first process whose command begins so, without its folder; Ray's workers call themselves ray::…"""

    def found(_compile: int, started: list[int]) -> list[int]:
        commands = {process: "".join(command_of(process)[:1]).rpartition("/")[2] for process in started}
        return [process for process, command in commands.items() if command.startswith(names)][:1]

    return found


VICTIMS = {"driver": driver, "worker": called("ray::"), "node": called("raylet"), "head": called("gcs_server")}


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("victim", VICTIMS)
def test_compiles_killed_at_random(tmp_path: Path, usual: Usual, victim: str, seed: int) -> None:
    longer = replace(usual, seconds=3 * usual.seconds)  # a cluster takes seconds to begin and to end
    # Ray's agent of environments looks for its cluster for a minute where that was killed while both began.
    check_killed(Killable(tmp_path / "killed", LOCAL, patience=120), longer, seed, VICTIMS[victim])


@contextmanager
def cluster() -> Iterator[tuple[str, list[int]]]:
    """The options of a cluster of two nodes, and the processes of its head and of each node."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(CLUSTER), mkdtemp(prefix="r-", dir="/tmp"), str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdin is not None
        yield f"ray://127.0.0.1:{port}", [int(word) for word in running.stdout.readline().split()]
        running.stdin.close()


@needs_ray
@pytest.mark.slow
def test_a_cluster_of_two_nodes_gives_the_same_bytes_when_one_is_lost(tmp_path: Path, usual: Usual) -> None:
    with cluster() as (address, (_, _, second)):
        for workers in (1, 2, 4):
            options = ("--executor", address, "--workers", str(workers))
            one = Killable(tmp_path / str(workers), options, {"RAY_AUTH_MODE": "disabled"})
            assert one.finish(one.start()) == usual.found
        last = Killable(tmp_path / "last", ("--executor", address), {"RAY_AUTH_MODE": "disabled"})
        check_killed(last, usual, 0, lambda _compile, _started: [second])


@needs_ray
@pytest.mark.slow
def test_a_compile_without_its_cluster_says_so_and_resumes(tmp_path: Path, usual: Usual) -> None:
    one = Killable(tmp_path / "one", ("--executor", "ray://127.0.0.1:9"), {"RAY_AUTH_MODE": "disabled"})
    running = one.start()
    said = running.communicate()[1]
    assert running.returncode == 2
    assert "no Ray cluster answers at 127.0.0.1:9" in said
    assert gone(marked(one.mark))
    again = Killable(tmp_path / "again", ("--executor", "threads"))
    assert again.finish(again.start()) == usual.found
