"""Machines that cannot run a CUDA library, and what is told of each."""

import ctypes
from pathlib import Path

import pytest

from ptqc.errors import TargetError
from ptqc.runtime import cuda
from ptqc.runtime.cuda import DriverInfo, check


def test_a_gpu_that_is_new_enough_is_taken() -> None:
    check(1, lambda: DriverInfo((13, 1), ((7, 5), (9, 0))))


@pytest.mark.parametrize(
    ("index", "result", "expected"),
    [
        (0, DriverInfo((12, 8), ((9, 0),)), r"knows CUDA 12\.8, and the library needs 13\.0: install a newer driver"),
        (1, DriverInfo((13, 0), ((9, 0),)), "no GPU cuda:1; this machine has 1"),
        (0, DriverInfo((13, 0), ()), "no GPU cuda:0; this machine has 0"),
        (0, DriverInfo((13, 0), ((7, 5),)), r"cuda:0 has compute capability 7\.5, and the library needs 8\.0 or more"),
        (0, DriverInfo((13, 0), ((8, 0),), is_emulator=True), "ptqc's emulator, which only verifies"),
    ],
)
def test_what_cannot_run_it_is_refused(index: int, result: DriverInfo, expected: str) -> None:
    with pytest.raises(TargetError, match=expected):
        check(index, lambda: result)


def test_a_machine_without_a_driver_is_told_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "DRIVER", "libcuda.so.of.nobody")
    with pytest.raises(TargetError, match=r"GPU with NVIDIA's driver, .*libcuda\.so\.of\.nobody.*run model\.onnx"):
        check(0)


def test_the_stand_in_for_the_driver_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ptqc.codegen.cuda.emulator import building

    if refusal := building.refusal():
        pytest.skip(refusal)
    driver, _ = building.build_stand_ins(tmp_path)
    monkeypatch.setattr(cuda, "DRIVER", str(driver))
    with pytest.raises(TargetError, match="emulator"):
        check(0)
    name = ctypes.create_string_buffer(64)
    ctypes.CDLL(str(driver)).cuDeviceGetName(name, 64, 0)
    assert name.value == b"no GPU: the emulator of ptqc"
