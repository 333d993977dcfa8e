"""Fixtures that tests of several rooms share: the project's own networks, and real models where they are at hand."""

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiling import Measured, compiled_once, measure_residual, residual, samples
from forked import Forks
from hypothesis import settings
from threadpoolctl import threadpool_limits

from ptqc.artifact.folder import Artifact
from ptqc.execution import sandboxed, speed
from ptqc.utils import sandbox

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "models"

# A busy machine is no fault of the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


# Read where torch is loaded, whose threads wait for each other, and here for the tests beside them. It is that of
# processes that tests start as well.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Collecting tests makes objects that all stay: looking among them for garbage takes a third of its time, and later some
# of every test's.
gc.disable()


def pytest_collection_finish() -> None:
    """From here on there is garbage."""
    gc.freeze()
    gc.enable()


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """The tests of one file run in this process: workers share nothing out there, and take seconds to start."""
    files = {argument.partition("::")[0] for argument in config.args}
    return 0 if len(files) == 1 and Path(files.pop()).is_file() else None


@pytest.fixture(scope="session", autouse=True)
def without_trials() -> Iterator[Callable[..., Any]]:
    """No process of its own for every model that a test compiles: half a second each. Gives what makes them."""
    real = sandboxed._attempt
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sandboxed, "_attempt", lambda *_given: None)
        yield real


@pytest.fixture(scope="session", autouse=True)
def own_process() -> Iterator[Callable[..., Any]]:
    """Processes that run TVM are forked from one that has imported it: seconds less each. Gives what starts others."""
    real = sandbox._done
    if sys.platform != "linux":
        yield real
        return
    forks = Forks()
    with closing(forks), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sandbox, "_done", lambda *arguments: forks.run(*arguments) or real(*arguments))
        yield real


@pytest.fixture(autouse=True)
def own_import_path() -> Iterator[None]:
    """What a test adds to the import path goes with it."""
    before = list(sys.path)
    yield
    sys.path[:] = before


@pytest.fixture(scope="session", autouse=True)
def short_comparisons_of_speed() -> Iterator[None]:
    """What is compiled is compared in speed for a moment: else that is most of the time of many tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speed, "SECONDS", 0.02)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_thread_of_blas() -> Iterator[None]:
    """Of each process that tests: threads that wait for a processor take it from the tests beside them."""
    with threadpool_limits(1, "blas"):
        yield


@pytest.fixture
def trials(without_trials: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Models meet native libraries in a process of its own first, as outside of tests."""
    monkeypatch.setattr(sandboxed, "_attempt", without_trials)


@pytest.fixture(scope="session")
def digits_model_path() -> Path:
    """The float network that the README compiles."""
    return MODELS / "digits_resnet_dw.onnx"


@pytest.fixture(scope="session")
def digits_calibration() -> np.ndarray:
    """Unlabelled inputs (512, 1, 16, 16) float32."""
    return np.load(MODELS / "digits_calibration.npz")["input"]


@pytest.fixture(scope="session")
def shared_room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes that test share, for what takes seconds to make."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def digits_evaluation() -> tuple[np.ndarray, np.ndarray]:
    """Held-out inputs (1796, 1, 16, 16) float32 and labels (1796,)."""
    arrays = np.load(MODELS / "digits_evaluation.npz")
    return arrays["input"], arrays["labels"]


@pytest.fixture(scope="session")
def small(shared_room: Path) -> Artifact:
    """The residual network of `compiling.py` at 25 %; its store is the folder `cache` beside it."""
    return compiled_once(residual(), samples(3, 8, 8), shared_room / "small", "25%", activations="integer")


@pytest.fixture(scope="session")
def coarse(shared_room: Path) -> Artifact:
    """The same network at 14 %, whose outputs differ from those of the float network; model.onnx lies beside it."""
    return compiled_once(residual(), samples(3, 8, 8), shared_room / "coarse", "14%", bits=(2, 4, 7))


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """The same network with measurements of a few widths. Whoever fits it leaves it as it is."""
    return measure_residual(tmp_path_factory.mktemp("residual"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real models and labelled data: PTQC_SHARED_DATA, or shared/data beside the repository."""
    named = os.environ.get("PTQC_SHARED_DATA")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    if not (folder / "models").is_dir():
        pytest.skip(f"needs real models: {folder} has no models/ (set PTQC_SHARED_DATA to a folder that has)")
    return folder
