"""Whole networks in FP8 become CUDA libraries, with kernels for chips that multiply it and for those that do not."""

import json
from pathlib import Path

import pytest

pytest.importorskip("tvm.tirx", reason="the cuda target needs Apache TVM")

from compiling import compiled, residual, samples
from test_cuda_target import needs_nvcc, process

import ptqc
from ptqc.codegen.cuda.emulator.opening import read_ptx
from ptqc.codegen.cuda.verification import CHIP


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("chip", ["sm_80", "sm_89"])
def test_random_networks(chip: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHIP, chip)
    done = process("emulated_networks", "float8", str(tmp_path))
    assert done.problem is None, done.errors
    result = json.loads(done.said)
    assert result["wrong"] == {}
    assert result["integers"] > 100_000
    assert result["reals"] > 100_000


@pytest.mark.slow
@needs_nvcc
def test_a_library_is_built_and_compared_on_both_architectures(tmp_path: Path) -> None:
    """All layers but the first one, which has three channels; the last one is behind a Flatten."""
    artifact = compiled(
        residual(), samples(3, 8, 8), tmp_path, None,
        activations="float8", activation_limit=10.0, target="cuda", gpu="sm_89",
    )  # fmt: skip
    built = artifact.manifest["targets"]["cuda"]
    assert sum(count for family, count in built["steps"].items() if family.startswith("float8_mma")) == 3
    assert (built["steps"]["quantize_float8"], built["steps"]["recode_float8"]) == (4, 1)
    assert built["roundings_of_float_parts"] == ["x", "ar", "br", "p"]
    assert read_ptx(artifact.folder / "cuda").count(".target sm_") == 2
    result = built["verification"]
    assert result["architectures"] == ["sm_80", "sm_89"]
    assert result["integers_compared"] > 10_000
    assert built["verified"].endswith("in the emulator of PTX for sm_80 and for sm_89; not run on a GPU")
    assert built["gpus"]["sm_89"]["tensor_core_instructions"] > 0
    ptqc.verify(artifact.folder)  # kernel by kernel, as `ptqc bisect` does
