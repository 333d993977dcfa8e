"""What the benchmark tells of a CUDA library is what its artifact says."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from cuda_verification import facts_of

GPUS = {
    "sm_80": {"registers": 92, "spilled_bytes": 0, "tensor_core_instructions": 1584},
    "sm_86": {"registers": 99, "spilled_bytes": 8, "tensor_core_instructions": 1584},
    "sm_90a": {"registers": 90, "spilled_bytes": 4, "tensor_core_instructions": 1600},
}
MULTIPLY = "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 %r0, %r1, %r2, %r3;"
# Of the two products in the PTX of each kernel, one has its loop unrolled for one chip; the other's are not right.
CODES = {
    "a": {
        "sm_80": {"shared_bytes": 1024, "tensor_core_instructions": 6},
        "sm_90a": {"shared_bytes": 2048, "tensor_core_instructions": 2},
    },
    "b": {"sm_80": {"shared_bytes": 0, "tensor_core_instructions": 3}},
}


def artifact(folder: Path, verification: dict[str, Any]) -> Path:
    (folder / "cuda").mkdir()
    record = {
        "kernels": 7,
        "steps": {"dense_mma": 5, "mean": 3},
        "bytes": 1_800_000,
        "weights_bytes": 225_000,
        "gpus": GPUS,
        "verification": verification,
    }
    ptx = "".join(f".visible .entry {name}()\n{{\n {MULTIPLY} {MULTIPLY}\n}}\n" for name in CODES)
    (folder / "cuda" / "kernels.ptx.gz").write_bytes(gzip.compress(ptx.encode()))
    (folder / "manifest.json").write_text(json.dumps({"targets": {"cuda": record}}))
    (folder / "cuda" / "kernels.json").write_text(json.dumps({"machine_code": CODES}))
    (folder / "run.json").write_text(json.dumps({"seconds": 12.5}))
    return folder


def test_the_most_of_all_kernels_and_what_was_compared(tmp_path: Path) -> None:
    result = facts_of(
        artifact(
            tmp_path,
            {
                "integers_compared": 1000,
                "reals_compared": 20,
                "end_to_end_different": {"y": 2},
                "end_to_end_rounded": {"y": 1},
            },
        )
    )
    assert result == {
        "kernels": 7,
        "on_tensor_cores": 5,
        "library_kb": 1800,
        "weights_kb": 225,
        "registers": "92; 90",
        "shared_bytes": 2048,
        "spilled_bytes": 12,
        "instructions": "1,584; 1,600",
        "as_in_ptx": "1 of 2 kernels",
        "seconds": 12.5,
        "integers": 1000,
        "reals": 20,
        "different": 0,
        "end_to_end": 2,
        "rounded": 1,
        "how": "whole",
    }


@pytest.mark.parametrize(
    ("cropped", "how"),
    [({}, "kernel by kernel"), ({"a": 0.9, "b": 0.5}, "kernel by kernel, 2 of 8 calls cropped, to 50% at least")],
)
def test_large_networks_are_compared_kernel_by_kernel(cropped: dict[str, float], how: str, tmp_path: Path) -> None:
    result = facts_of(artifact(tmp_path, {"integers_compared": 10, "reals_compared": 5, "cropped": cropped}))
    assert (result["integers"], result["different"], result["how"]) == (10, 0, how)


def test_what_was_not_verified_is_told(tmp_path: Path) -> None:
    result = facts_of(artifact(tmp_path, {"missing": "an instruction"}))
    assert result["note"] == "not verified: an instruction"
    assert "integers" not in result
