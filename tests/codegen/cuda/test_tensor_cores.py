"""Layers on tensor cores, however they are cut and their weights packed, give the integers of a sum tap by tap."""

import json
from pathlib import Path

import pytest

pytest.importorskip("tvm.tirx", reason="the cuda target needs Apache TVM")

from test_cuda_target import needs_nvcc, process

FOUND = ("differs: ", "stops: ")


@needs_nvcc
@pytest.mark.parametrize("kind", ["few", pytest.param("all", marks=pytest.mark.slow)])
def test_every_cut_and_packing_gives_the_same_integers(kind: str, tmp_path: Path) -> None:
    done = process("single_kernels.py", "dense_cases", kind, str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["wrong"] == {}
    assert len(found["off"]) > 2
    assert found["spilled"] == 0


@needs_nvcc
@pytest.mark.slow
def test_planted_faults_are_found_in_every_order_of_threads(tmp_path: Path) -> None:
    """Barriers, copies waited for, packing, signs, sums of shares, rounding, saturation."""
    done = process("single_kernels.py", "dense_cases", "few", str(tmp_path), "all faults")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) >= 27
    missed = {fault: told for fault, told in found.items() if not all(each.startswith(FOUND) for each in told)}
    assert missed == {}
