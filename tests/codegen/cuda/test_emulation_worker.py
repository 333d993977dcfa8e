"""The process that compares a delivered library decides once whether the network runs as a whole."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ptqc.codegen.cuda import verification
from ptqc.codegen.cuda.emulator.opening import PTX
from ptqc.codegen.cuda.verification import OUTPUTS
from ptqc.codegen.kernels.process import JOB, VALUES
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.listing import Call, Listing
from ptqc.runtime.interface import KERNELS
from ptqc.utils.store import write_npz

LAYOUTS = {name: Layout((5,), "uint8", is_io=True) for name in "xy"}
LISTING = Listing((Call("invert", "invert", ("x",), "y", "y", 0, operations=10),), LAYOUTS, ("x",), ("y",))
# Samples of the runs.
BATCHES = (1, 4, 1)


class Inverting:
    constants: tuple[()] = ()

    def kernel(self, name: str) -> Callable[..., object]:
        assert name == "invert"
        return lambda x, y: np.copyto(y, 255 - x)

    def run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"y": 255 - feeds["x"]}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / KERNELS).write_text(json.dumps({"libraries": {"cuda": LISTING.to_json()}}))
    for index, batch in enumerate(BATCHES):
        x = np.full((batch, 5), index, np.uint8)
        write_npz(tmp_path / VALUES.format(index), {"x": x, "y": 255 - x})
    (tmp_path / JOB).write_text(json.dumps({"library": str(tmp_path), "runs": len(BATCHES)}))
    (tmp_path / PTX).write_bytes(gzip.compress(b".version 9.0\n.target sm_80\n"))
    monkeypatch.setattr(verification, "open_delivered", lambda *_: Inverting())
    return tmp_path


@pytest.mark.parametrize(("most", "elements"), [(60, [5, 20, 5]), (59, [5, 5, 5]), (30, [5, 5, 5])])
def test_either_all_runs_are_whole_or_none(
    most: int, elements: list[int], job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30 operations: three times those of the first run, which has fewer samples than the second."""
    monkeypatch.setattr(verification, "MOST_OPERATIONS", most)
    report = verification.compare(job)
    assert [[outcome["elements"] for outcome in run] for run in report["outcomes"]] == [[count] for count in elements]
    outputs = [(job / OUTPUTS.format(index)).is_file() for index in range(len(BATCHES))]
    assert outputs == [most == 60] * len(BATCHES)
