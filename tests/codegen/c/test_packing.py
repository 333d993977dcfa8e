"""Packed weights: C unpacks from flash the codes that were packed, and each packing is the smallest there is."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from in_c import HAS_COMPILER

from ptqc.codegen.c import packing, verify
from ptqc.codegen.c.constants import Constants
from ptqc.codegen.c.packing import PackedWeights
from ptqc.codegen.c.source import dispatch, functions
from ptqc.formats import Format, Integer, Trellis, VectorCodebook
from ptqc.formats.trellis import RowTrellis

pytestmark = HAS_COMPILER
ROWS, WIDTH = 24, 48


def normal(deviation: float, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return np.clip(np.rint(random.normal(0, deviation, (ROWS, WIDTH))), -127, 127).astype(np.int8)


def in_format(form: Format, taps: int = 1) -> np.ndarray:
    """Codes of a format, in the order of rows of C."""
    shape = (ROWS, WIDTH) if taps == 1 else (ROWS, WIDTH // taps, taps)
    weight = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    codes, _ = form.rounded(weight, 0)  # type: ignore[attr-defined]
    return packing.of_layer(codes)


def unpacked(weights: PackedWeights, folder: Path, stride: int = 1) -> np.ndarray:
    """What C makes of packed rows."""
    constants = Constants()
    initializer = constants.weights(weights)
    kinds = [] if weights.is_raw else [weights.kind]
    text = "\n".join(
        [
            "#include <stddef.h>\n#include <stdint.h>\n#include <stdio.h>\n#include <string.h>",
            str(constants),
            functions({"unpack"}, kinds),
            f"static const struct weights weights = {initializer};",
            f"int main(void) {{ static uint8_t states[{max(weights.states, 1)}]; static int8_t row[{WIDTH * stride}];",
            "struct reader reader; open_reader(&reader, &weights, states);",
            f"for (int i = 0; i < {ROWS}; i++) {{ unpack_row(&reader, row, {stride});",
            "fwrite(row, sizeof row, 1, stdout); } return 0; }",
        ]
    )
    (folder / "unpack_test.c").write_text(text, encoding="utf-8")
    program = folder / "unpack_test"
    flags = ["-std=c99", "-O1", *verify.SANITIZERS]
    subprocess.run([verify.compiler(), *flags, "-o", program, folder / "unpack_test.c"], check=True)
    data = subprocess.run([program], capture_output=True, check=True).stdout
    return np.frombuffer(data, np.int8).reshape(ROWS, WIDTH, stride)[:, :, 0]


@pytest.mark.parametrize(
    ("kind", "rows", "form", "taps"),
    [
        ("index", normal(2).clip(-7, 7), None, 1),
        ("index", np.random.default_rng(0).choice([-50, -3, 9, 80], (ROWS, WIDTH)).astype(np.int8), None, 1),
        ("prefix", normal(6), None, 1),
        ("prefix", normal(15), None, 1),
        ("pairs", in_format(VectorCodebook(5)), VectorCodebook(5), 1),
        ("pairs", in_format(VectorCodebook(4), 3), VectorCodebook(4), 3),
        ("column_path", in_format(Trellis(5)), Trellis(5), 1),
        ("column_path", in_format(Trellis(6)), Trellis(6), 1),
        ("row_path", in_format(RowTrellis(7)), RowTrellis(7), 1),
    ],
)
@pytest.mark.parametrize("stride", [1, 4])
def test_c_unpacks_what_was_packed(
    kind: str, rows: np.ndarray, form: Format | None, taps: int, stride: int, tmp_path: Path
) -> None:
    weights = packing.packed(rows, form, taps)
    assert weights.kind == kind
    assert np.array_equal(unpacked(weights, tmp_path, stride), rows)


def test_evenly_spaced_codes_take_the_bits_of_their_number(tmp_path: Path) -> None:
    rows = in_format(Integer(3))
    weights = packing.packed(rows, Integer(3))
    assert weights.kind == "index"
    assert weights.bits == 3
    assert weights.data.size == ROWS * WIDTH * 3 // 8 + packing.READ_AHEAD
    assert np.array_equal(unpacked(weights, tmp_path), rows)


def test_codes_of_eight_bits_stay_as_they_are_where_packing_saves_little() -> None:
    rows = np.random.default_rng(0).integers(-127, 128, (ROWS, WIDTH)).astype(np.int8)
    weights = packing.packed(rows, None)
    assert weights.is_raw
    assert np.array_equal(weights.data.view(np.int8).reshape(rows.shape), rows)


def test_a_code_of_minus_128_is_packed_too() -> None:
    rows = normal(2)
    rows[3, 4] = -128
    assert packing.packed(rows, None).bytes <= rows.size


def test_nothing_is_unpacked_of_kinds_that_are_not_there() -> None:
    assert "switch" not in dispatch([])
    assert "PAIRS" in dispatch(["pairs"])
