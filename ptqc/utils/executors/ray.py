"""Units solved by Ray (https://docs.ray.io): on a cluster, or on one of this machine's own for as long as a compile.

Ray carries names of entries only. What it keeps of messages is of no use to anybody else, and how often a lost problem
is given away again is decided here, as for all workers.
"""

import logging
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from threading import Event, Lock, Thread
from typing import Any, ClassVar, Self

from ptqc.errors import Interrupted, PtqcError, UsageError
from ptqc.utils.executors.base import Message, Reply
from ptqc.utils.executors.remote import Remote, WorkerLost
from ptqc.utils.executors.worker import work
from ptqc.utils.parallel import processors
from ptqc.utils.scratch import Scratch
from ptqc.utils.store import Store

LOOPBACK = "127.0.0.1"
# What Ray reads from the environment when it begins: it tells nobody of its use, listens on the loopback interface
# alone, answers only who has the secret of this process, and gives up soon where its own head is gone. Workers begin
# with their first task: if one ends that Ray began before, whoever connects waits for ever (github.com/ray-project/ray,
# 40131).
TOKEN = secrets.token_hex(32)
OWN_CLUSTER: Mapping[str, str] = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": TOKEN,
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
    "RAY_prestart_worker_first_driver": "0",
}
# The least that Ray takes; messages are a few hundred bytes.
OBJECT_BYTES = 80 * 2**20
# Of the folder of a cluster's files, whose sockets have names of at most 107 bytes.
LONGEST_FOLDER = 42


class Ray(Remote):
    """Tasks of a cluster at `address`, or of one that is started when it is needed and ends with the compile.

    workers: 0: as many as this machine or the cluster has processors.
    """

    name: ClassVar[str] = "ray"
    takes_address: ClassVar[bool] = True

    def __init__(self, store: Store, workers: int = 0, address: str = "") -> None:
        super().__init__(store)
        self.address, self.is_here = address, not address
        self._workers = workers
        self._lock, self._closed = Lock(), Event()
        self._thread: Thread | None = None
        self._ready, self._failed = Event(), list[Exception]()
        self._ask: Callable[[dict[str, Any]], dict[str, Any]] | None = None
        self._processors = 0

    @classmethod
    def of(cls, store: Store, workers: int, address: str = "") -> Self:
        """Tasks that read and write this store, which every machine of a cluster sees at the same place."""
        if find_spec("ray") is None or (address and find_spec("grpc") is None):
            raise UsageError("executor ray needs Ray, which is not installed: pip install 'ptqc[ray]'")
        return cls(store, workers, address)

    @property
    def workers(self) -> int:
        """Tasks at a time."""
        if self.is_here or self._workers:
            return self._workers or processors()
        self._connected()
        return max(1, self._processors)

    def ask(self, message: Message) -> Reply:
        """The answer of a task."""
        task = self._connected()
        import ray.exceptions as lost

        try:
            return Reply.of(task(message.to_json()))
        except (lost.WorkerCrashedError, lost.NodeDiedError, lost.OutOfMemoryError, lost.ObjectLostError) as error:
            raise WorkerLost(_line(error)) from error
        except (lost.RayError, ConnectionError) as error:
            raise self._interrupted(error) from error

    def _interrupted(self, error: Exception) -> Interrupted:
        where = f" at {self.address}" if self.address else ""
        return Interrupted(
            f"Ray{where} does not answer: {_line(error)}. What was solved is kept: see that the cluster is well "
            "and that ptqc is installed on its machines, and run the same command again"
        )

    def _connected(self) -> Callable[[dict[str, Any]], dict[str, Any]]:
        """What sends a message and waits for its reply."""
        with self._lock:
            if self._thread is None:
                # The processes of a cluster end with the thread that started them.
                self._thread = Thread(target=self._hold, daemon=True)
                self._thread.start()
            self._ready.wait()
        if self._failed:
            raise self._failed[0]
        assert self._ask is not None
        return self._ask

    def _hold(self) -> None:
        """Be connected until the executor is closed."""
        try:
            with self._cluster() as ray:
                task = ray.remote(num_cpus=1, max_retries=0)(work)
                self._processors = int(ray.cluster_resources().get("CPU", 1))
                self._ask = lambda message: ray.get(task.remote(message))
                self._ready.set()
                self._closed.wait()
        except PtqcError as error:  # whoever waits raises it
            self._failed.append(error)
        except Exception as error:  # Ray raises bare ones where a process of a cluster ends while that begins
            self._failed.append(self._interrupted(error))
        finally:
            self._ready.set()

    @contextmanager
    def _cluster(self) -> Iterator[Any]:
        """Ray, connected; one that the application has connected already stays so."""
        was_loaded = "ray" in sys.modules
        with _environment({} if self.address else OWN_CLUSTER):
            import ray

            if ray.is_initialized():
                yield ray
                return
            with _quiet():
                try:
                    files = self._connect(ray)
                    if not self.address and ray.util.get_node_ip_address() != LOOPBACK:
                        result = "; Ray was imported before: connect it yourself, with ray.init()" if was_loaded else ""
                        raise UsageError(
                            f"Ray would listen on more than the loopback interface of this machine{result}"
                        )
                    yield ray
                finally:
                    ray.shutdown()
            del files

    def _connect(self, ray: Any) -> Scratch | None:
        """Connect to the cluster, or start one; its files are there for as long as somebody holds them."""
        if self.address:
            try:
                ray.init(f"ray://{self.address}", log_to_driver=False, configure_logging=False)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise UsageError(f"no Ray cluster answers at {self.address}: {_line(error)}") from error
            return None
        files = Scratch()
        if len(str(files.folder)) > LONGEST_FOLDER:
            raise UsageError(f"the name {files.folder} is too long for Ray's sockets; set TMPDIR to a shorter one")
        ray.init(
            address="local",
            num_cpus=self.workers,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            object_store_memory=OBJECT_BYTES,
            _temp_dir=str(files.folder),
        )
        return files

    def close(self) -> None:
        """Disconnect, and end a cluster of this machine's own."""
        self._closed.set()
        with self._lock:
            if self._thread is not None:
                self._thread.join()
        super().close()


@contextmanager
def _quiet() -> Iterator[None]:
    """Nothing below an error from Ray's logger, whose level is set when it is imported."""
    logger = logging.getLogger("ray")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables of this process, and of those that it starts."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
