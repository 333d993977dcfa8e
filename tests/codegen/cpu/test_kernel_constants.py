"""Constants are stored in few bytes and come back exactly when the library is loaded."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.tvm import constants, isa, worker
from ptqc.codegen.tvm.constants import Scaled, Stored
from ptqc.codegen.tvm.families import build
from ptqc.codegen.tvm.layout import Layout
from ptqc.codegen.tvm.program import Program, Step

WIDTHS = range(2, 9)


def every_code(bits: int, size: int = 200) -> np.ndarray:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)
    codes = np.random.default_rng(bits).integers(low, high, size)
    codes[:2] = low, high - 1
    return codes.astype(np.int8)


@pytest.mark.parametrize("bits", WIDTHS)
def test_the_fewest_bits_are_found(bits: int) -> None:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    assert constants.bits_of(np.array([low], np.int8)) == bits
    assert constants.bits_of(np.array([high], np.int8)) == bits
    if bits < 8:
        assert constants.bits_of(np.array([low - 1], np.int8)) == bits + 1
        assert constants.bits_of(np.array([high + 1], np.int8)) == bits + 1


def test_nothing_and_zeros_need_two_bits() -> None:
    assert constants.bits_of(np.zeros(0, np.int8)) == constants.bits_of(np.zeros(5, np.int8)) == 2


@pytest.mark.parametrize("bits", WIDTHS)
def test_stored_bytes_are_those_of_the_planes(bits: int) -> None:
    codes = every_code(bits)
    assert constants.stored_bytes(codes) == 200 * bits // 8
    if bits < 8:
        assert sum(plane.nbytes for plane in constants.pack(codes, bits)) == 200 * bits // 8


def test_stored_bytes_of_real_numbers_and_of_scaled_codes() -> None:
    assert constants.stored_bytes(np.zeros(7, np.float32)) == 28
    assert constants.stored_bytes(Scaled(every_code(3), np.ones(10, np.float32), 5)) == 75 + 40


def ready_made(constant: Stored) -> np.ndarray:
    """What kernels are given: codes times the scale of their panel and channel."""
    if not isinstance(constant, Scaled):
        return constant
    codes = constant.codes.reshape(constant.panels, constant.depth, constant.width).astype(np.float32)
    return np.asarray(codes * constant.scale.reshape(constant.panels, 1, constant.width)).reshape(-1)


def test_loading_gives_the_constants_back(tmp_path: Path) -> None:
    stored: list[Stored] = [every_code(bits) for bits in WIDTHS]
    stored += [every_code(3, 203), Scaled(every_code(4, 240), np.linspace(0.1, 2, 10, dtype=np.float32), 2)]
    layout = Layout((4,), "uint8")

    def body(batch: Any, *buffers: Any) -> None:
        with T.serial(batch) as sample:
            T.buffer_store(buffers[-1], T.uint8(0), [sample, T.int32(0)])

    kernel = build("nothing", [layout], stored, layout, body)
    program = Program((Step(kernel, ("x",), "y"),), {"x": layout, "y": layout}, ("x",), ("y",))
    worker.write(program, isa.AVX2, tmp_path)
    ready = worker.load(tmp_path, program).library.constants
    for found, wanted in zip(ready, stored, strict=True):
        np.testing.assert_array_equal(np.from_dlpack(found), ready_made(wanted))
