"""Networks in C on emulated microcontrollers: outputs, counts of instructions, stack, sizes, and what can go wrong."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from boards import needs_boards

from ptqc.codegen.c import emulation
from ptqc.codegen.c.emulation import BOARDS, BoardRun, BuildOptions, CNetwork, run_on_board
from ptqc.errors import TargetError

on_all_boards = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)

HEADER = """
#include <stdint.h>
int ptqc_tiny_run(const uint8_t *input, const int8_t *shift, int32_t *sum, float *half);
"""
SUMS = """
#include "tiny.h"
#include <string.h>

static const int32_t factors[4] = {1, 2, 3, 4};
static uint8_t arena[64];

int ptqc_tiny_run(const uint8_t *input, const int8_t *shift, int32_t *sum, float *half) {
    memcpy(arena, input, 20);
    *sum = 0;
    for (int i = 0; i < 20; ++i) *sum += arena[i] * factors[i & 3];
    *sum += shift[0] - shift[2];
    *half = 0.5f * (float)*sum;
    return 0;
}
"""
# A loop of two instructions, and as many bytes of stack as it clears.
LOOP = """
#include "tiny.h"

int ptqc_tiny_run(const uint8_t *input, const int8_t *shift, int32_t *sum, float *half) {
    volatile uint8_t buffer[1000];
    unsigned int rounds = 1000u * input[0];
    (void)shift;
    buffer[0] = buffer[999] = 0;
    __asm__ volatile("1: subs %0, #1\\n bne 1b\\n" : "+r"(rounds));
    *sum = buffer[999];
    *half = 0;
    return 0;
}
"""


def network(folder: Path, source: str) -> CNetwork:
    (folder / "tiny.h").write_text(HEADER)
    (folder / "tiny.c").write_text(source)
    return CNetwork(folder, "tiny", inputs=(20, 3), outputs=(4, 4))


def sample(first: int) -> list[bytes]:
    return [bytes([first, *range(1, 20)]), bytes([5, 0, 256 - 3])]


def run(folder: Path, source: str, board: emulation.Board, *firsts: int, stack_bytes: int = 4096) -> BoardRun:
    options = BuildOptions(stack_bytes=stack_bytes, seconds=60)
    return run_on_board(board, network(folder, source), [sample(first) for first in firsts], options)


@needs_boards
@on_all_boards
def test_outputs_are_those_of_the_samples(board: emulation.Board, tmp_path: Path) -> None:
    result = run(tmp_path, SUMS, board, 0, 200)
    total = sum(value * (1 + value % 4) for value in range(20)) + 5 + 3
    assert [int.from_bytes(outputs[0], "little") for outputs in result.outputs] == [total, total + 200]
    halves = [memoryview(outputs[1]).cast("f")[0] for outputs in result.outputs]
    assert halves == [total / 2, (total + 200) / 2]


@needs_boards
@on_all_boards
def test_instructions_are_counted_exactly(board: emulation.Board, tmp_path: Path) -> None:
    result = run(tmp_path, LOOP, board, 1, 2, 201)
    first, second, third = result.instructions
    assert second - first == 2000
    assert third - first == 2000 * 200
    assert 2000 < first < 2040


@needs_boards
@on_all_boards
def test_stack_is_measured(board: emulation.Board, tmp_path: Path) -> None:
    assert 1000 < run(tmp_path, LOOP, board, 1).stack_bytes < 1100
    with pytest.raises(TargetError, match="the stack is too small"):
        run(tmp_path, LOOP, board, 1, stack_bytes=512)


@needs_boards
@on_all_boards
def test_sizes_are_of_the_network_alone(board: emulation.Board, tmp_path: Path) -> None:
    source = SUMS + "static int unused = 3; int ptqc_tiny_unused(void) { return ++unused; }\n"
    result = run(tmp_path, source, board)
    assert 0 < result.network.text < 400
    assert (result.network.data, result.network.bss) in [(0, 64), (0, 0)]  # the copy may be left out
    assert result.network.flash == result.network.text + result.network.rodata
    assert result.outputs == []


@needs_boards
def test_archives_are_counted_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # paths may be relative
    board, plain = BOARDS["cortex-m4"], network(Path(), SUMS.replace("return 0;", "return helper(0);"))
    Path("tiny.h").write_text(HEADER + "int helper(int);\n")
    Path("helper.c").write_text("int helper(int status) { return status; }\n")
    emulation.compile_c(board, Path("helper.c"), Path("helper.o"), ["-O2"])
    subprocess.run(["arm-none-eabi-ar", "rcs", "libhelper.a", "helper.o"], check=True)
    result = run_on_board(board, replace(plain, archives=(Path("libhelper.a"),)), [sample(1)])
    assert 0 < result.archives.text < 16
    assert result.network.text > 16


@needs_boards
def test_libraries_are_counted_apart(tmp_path: Path) -> None:
    source = SUMS.replace("(float)*sum", "(float)((double)*sum / input[0])")
    result = run(tmp_path, source, BOARDS["cortex-m4"], 1)
    assert result.network.flash < 500 < result.libraries.text


@needs_boards
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("return 0;", "return 7;", "ptqc_tiny_run gives 7 on cortex-m4"),
        ("return 0;", "return nothing;", r"does not build the network: .*'nothing' undeclared"),
        ("return 0;", "return absent();", r"does not build the network: .*undefined reference to `absent'"),
        ("return 0;", "return *(volatile int *)0xE0200000;", "does not run on cortex-m4: the processor met a fault"),
        ("arena[64]", "arena[1 << 26]", r"does not build the network: .*region `data' overflowed"),
    ],
)
def test_failures_say_what_went_wrong(old: str, new: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=message):
        run(tmp_path, SUMS.replace(old, new), BOARDS["cortex-m4"], 1)


@pytest.mark.slow
@needs_boards
def test_endless_runs_are_stopped(tmp_path: Path) -> None:
    endless = network(tmp_path, SUMS.replace("return 0;", 'for (;;) __asm__ volatile("");'))
    with pytest.raises(TargetError, match="qemu-system-arm did not end within 5 s"):
        run_on_board(BOARDS["cortex-m4"], endless, [sample(1)], BuildOptions(seconds=5))


@needs_boards
def test_samples_have_the_bytes_of_the_inputs(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"a sample has inputs of \(20,\) bytes, and tiny takes \(20, 3\)"):
        run_on_board(BOARDS["cortex-m4"], network(tmp_path, SUMS), [sample(1)[:1]])


@needs_boards
def test_versions_are_those_of_the_tools() -> None:
    described = emulation.versions()
    assert "gcc" in described["arm-none-eabi-gcc"]
    assert described["qemu-system-arm"].startswith("QEMU")


def test_absent_tools_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TargetError, match="arm-none-eabi-gcc and qemu-system-arm are not installed"):
        run_on_board(BOARDS["cortex-m4"], network(tmp_path, SUMS), [])


def test_counters_that_began_again_are_told_by_the_seconds() -> None:
    board = BOARDS["cortex-m4"]
    ticks = 2 * 10**9 * 32 // 5  # 6.4 ticks are an instruction
    assert board.instructions(ticks // board.frequency, ticks % 2**32) == 2 * 10**9
