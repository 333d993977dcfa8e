"""Packed weights: C unpacks from flash the codes that were packed, and each packing is the smallest there is."""

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from boards import needs_boards
from in_c import HAS_COMPILER
from mostly_slow import mostly_slow

from ptqc.codegen.c import packing, verify
from ptqc.codegen.c.constants import Constants
from ptqc.codegen.c.emulation import BOARDS, CNetwork, run_on_board
from ptqc.codegen.c.packing import PackedWeights
from ptqc.codegen.c.source import dispatch, functions
from ptqc.formats import Format, Integer, Trellis, VectorCodebook
from ptqc.formats.trellis import BITS, RowTrellis

pytestmark = HAS_COMPILER
ROWS, WIDTH = 24, 48
AT_ONCE = 5  # rows that are unpacked by one call, of which the last has fewer


def normal(deviation: float, width: int = WIDTH, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return np.clip(np.rint(random.normal(0, deviation, (ROWS, width))), -127, 127).astype(np.int8)


def spaced(bits: int, width: int) -> np.ndarray:
    """Evenly spaced codes, among them the lowest and the highest that there are."""
    step = 255 // (2**bits - 1)
    index = np.random.default_rng(bits).integers(0, 2**bits, (ROWS, width))
    index[0, :2] = 0, 2**bits - 1
    return (-128 + index * step).astype(np.int8)


def listed(bits: int, width: int) -> np.ndarray:
    """As many codes as indices of these bits tell, without order."""
    random = np.random.default_rng(bits)
    codes = random.choice(np.arange(-127, 128), 2**bits, replace=False)
    return random.choice(codes, (ROWS, width)).astype(np.int8)


def skewed(width: int) -> np.ndarray:
    """Codes of which frequent ones are not the smallest."""
    return (40 - np.abs(normal(9, width))).astype(np.int8)


def in_format(form: Format, width: int = WIDTH, taps: int = 1) -> np.ndarray:
    """Codes of a format, in the order of rows of C."""
    shape = (ROWS, width) if taps == 1 else (ROWS, width // taps, taps)
    weight = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    codes, _ = form.rounded(weight, 0)  # type: ignore[attr-defined]
    return packing.of_layer(codes)


@dataclass(frozen=True)
class Case:
    """Rows, and the packing that they get."""

    kind: str
    rows: np.ndarray
    form: Format | None = None
    taps: int = 1

    @property
    def weights(self) -> PackedWeights:
        """Those of this kind, whether it is the smallest or not."""
        every = packing.packings(np.ascontiguousarray(self.rows), self.form, self.taps)
        return next(each for each in every if each.kind == self.kind)


def cases() -> Iterator[Case]:
    """All kinds, in all bits, and in widths with whole vectors, without one, and with parts of words."""
    for width in (48, 37, 6):
        yield from (Case("index", spaced(bits, width)) for bits in range(1, 7))
        yield from (Case("index", listed(bits, width)) for bits in range(2, 7))
        yield from (Case("prefix", normal(deviation, width)) for deviation in (1, 6, 15, 40))
        yield Case("prefix", skewed(width))
    yield from (
        Case("column_path", in_format(Trellis(bits), width), Trellis(bits)) for bits in BITS for width in (48, 37)
    )
    yield from (
        Case("row_path", in_format(RowTrellis(bits), width), RowTrellis(bits)) for bits in BITS for width in (48, 37)
    )
    yield from (Case("pairs", in_format(VectorCodebook(bits)), VectorCodebook(bits)) for bits in range(3, 9))
    yield Case("pairs", in_format(VectorCodebook(4), 14), VectorCodebook(4))
    yield Case("pairs", in_format(VectorCodebook(4), 48, 3), VectorCodebook(4), 3)


CASES = list(cases())
KINDS = sorted({case.kind for case in CASES})


def unpacker(cases: Sequence[Case], name: str) -> str:
    """A function of C that unpacks rows, each weight into memory of its size and of what may be written behind."""
    constants = Constants()
    calls = []
    for number, weights in enumerate(case.weights for case in cases):
        size = ROWS * weights.row
        calls.append(f"static const struct weights w{number} = {constants.weights(weights)};")
        calls.append(f"static int8_t codes{number}[{size + packing.WRITTEN_AHEAD}];")
        calls.append(f"open_reader(&reader, &w{number});")
        calls.append(f"for (uint32_t row = 0; row < {ROWS}u; row += {AT_ONCE}u)")
        calls.append(f"unpack_rows(&reader, {ROWS}u - row < {AT_ONCE}u ? {ROWS}u - row : {AT_ONCE}u,")
        calls.append(f"codes{number} + row * {weights.row}u);\nmemcpy(out, codes{number}, {size});\nout += {size};")
    head = "#include <stddef.h>\n#include <stdint.h>\n#include <string.h>"
    body = "\n".join(["struct reader reader;", *calls, "return 0;"])
    kinds = sorted({case.kind for case in cases})
    return f"{head}\n{constants}\n{functions({'unpack'}, kinds)}\nint {name}(int8_t *out) {{\n{body}\n}}\n"


def differences(data: bytes, cases: Sequence[Case]) -> list[str]:
    """Cases that have other codes."""
    codes, result = np.frombuffer(data, np.int8), []
    for case in cases:
        if not np.array_equal(codes[: case.rows.size].reshape(case.rows.shape), case.rows):
            result.append(f"{case.kind} {case.form} {case.weights.bits} {case.rows.shape[1]}")
        codes = codes[case.rows.size :]
    return result


@pytest.mark.parametrize("compiler", mostly_slow(verify.COMPILERS, verify.COMPILERS[0]))
@pytest.mark.parametrize("kind", KINDS)
def test_c_unpacks_what_was_packed(kind: str, compiler: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    cases = [case for case in CASES if case.kind == kind]
    size = sum(case.rows.size for case in cases)
    text = (
        f"#include <stdio.h>\nint unpack(int8_t *out);\nint main(void) {{ static int8_t out[{size}]; unpack(out);"
        f"return fwrite(out, {size}, 1, stdout) != 1; }}"
    )
    (tmp_path / "unpack.c").write_text(f"#include <stdint.h>\n{text}\n{unpacker(cases, 'unpack')}", encoding="utf-8")
    flags = [*verify.WARNINGS, "-Werror", "-O1", *verify.SANITIZERS]
    subprocess.run([compiler, *flags, "-o", tmp_path / "unpack", tmp_path / "unpack.c"], check=True)
    data = subprocess.run([tmp_path / "unpack"], capture_output=True, check=True).stdout
    assert differences(data, cases) == []


@needs_boards
@pytest.mark.parametrize("name", mostly_slow(BOARDS, "cortex-m55"))
def test_boards_unpack_what_was_packed(name: str, tmp_path: Path) -> None:
    board = BOARDS[name]
    (tmp_path / "unpack.c").write_text(unpacker(CASES, "ptqc_unpack_run"), encoding="utf-8")
    (tmp_path / "unpack.h").write_text("int ptqc_unpack_run(signed char *out);\n", encoding="utf-8")
    network = CNetwork(tmp_path, "unpack", (), (sum(case.rows.size for case in CASES),))
    assert differences(run_on_board(board, network, [[]]).outputs[0][0], CASES) == []


@pytest.mark.parametrize(
    ("kind", "rows", "form", "taps"),
    [
        ("index", normal(2).clip(-7, 7), None, 1),
        ("index", listed(2, WIDTH), None, 1),
        ("prefix", normal(6), None, 1),
        ("pairs", in_format(VectorCodebook(5)), VectorCodebook(5), 1),
        ("pairs", in_format(VectorCodebook(4), WIDTH, 3), VectorCodebook(4), 3),
        ("column_path", in_format(Trellis(5)), Trellis(5), 1),
        ("row_path", in_format(RowTrellis(7)), RowTrellis(7), 1),
    ],
)
def test_the_smallest_packing_is_taken(kind: str, rows: np.ndarray, form: Format | None, taps: int) -> None:
    assert packing.packed(rows, form, taps).kind == kind


def test_frequent_codes_that_are_not_small_are_listed() -> None:
    assert Case("prefix", skewed(WIDTH)).weights.table is not None
    assert Case("prefix", normal(6)).weights.table is None


def test_evenly_spaced_codes_take_the_bits_of_their_number() -> None:
    rows = in_format(Integer(3))
    weights = packing.packed(rows, Integer(3))
    assert weights.kind == "index"
    assert weights.bits == 3
    assert weights.data.size == ROWS * WIDTH * 3 // 8 + packing.READ_AHEAD


def test_a_path_takes_the_bits_of_its_steps() -> None:
    """And those that its first state has from its end."""
    rows = in_format(Trellis(7))
    weights = packing.packed(rows, Trellis(7))
    assert weights.data.size == WIDTH * -(-(ROWS // 2 * 7 + 8 - 4) // 8) + packing.READ_AHEAD


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
