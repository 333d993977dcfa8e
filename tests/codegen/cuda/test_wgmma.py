"""Layers by products of warpgroups give the integers of a sum tap by tap, on Hopper and, warp by warp, elsewhere."""

from pathlib import Path

import pytest

pytest.importorskip("tvm.tirx", reason="the cuda target needs Apache TVM")

import kernel_processes
from test_cuda_target import needs_nvcc


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["one", "all"])
def test_every_cut_and_packing_gives_the_same_integers(kind: str, tmp_path: Path) -> None:
    """On Hopper each part of a step is two instructions, which do not wait for each other."""
    result = kernel_processes.run("group_cases", kind, tmp_path)
    assert result["wrong"] == {}
    assert len(result["off"]) > (kind == "all") * 11
    assert result["spilled"] == 0
    assert result["serialized"] == []
    products = {name: count for name, count in result["tensor_core_instructions"].items() if "group_mma" in name}
    assert len(products) == 2 * len(result["off"])
    for name, count in products.items():
        assert count in ((4, 8) if name.startswith("sm_90a") else (32, 64)), name


@needs_nvcc
@pytest.mark.slow
def test_planted_faults_are_found_in_every_order_of_threads(tmp_path: Path) -> None:
    """Fences, waits, copies, descriptors, swizzling, signs, packing, registers exchanged."""
    assert kernel_processes.unnoticed("group_cases", 32, tmp_path) == {}
